// Keys and clicks: one after the other, each deciding only on what was on the screen when it was pressed.
import { errorSince, notify, clearNotification } from "/static/dom.js";
import { onChange, store } from "/static/store.js";

// Whether keys of one character do something. Who dictates, or presses keys by accident, turns them off.
const KEYS = "shoal-keys";
let areOn = localStorage.getItem(KEYS) !== "off";
export const areKeysOn = () => areOn;
export function turnKeys(on) {
  areOn = on;
  localStorage.setItem(KEYS, on ? "on" : "off");
}

// What lies on a key in the Latin alphabet, where a layout has a letter of another one on it: Cyrillic or Greek.
const BRACKETS = { BracketLeft: "[", BracketRight: "]" };
const isOtherLetter = (key) => /\p{L}/u.test(key) && !/\p{Script=Latin}/u.test(key);
const inLatin = (key, code = "") =>
  (isOtherLetter(key) ? BRACKETS[code] ?? code.match(/^Key([A-Z])$/)?.[1] ?? key : key);

// The key that was pressed, whatever Caps Lock makes of it: a letter is large with Shift alone. None where it is off.
export function keyOf({ key, code, shiftKey, ctrlKey, metaKey }) {
  if (key.length > 1 || key === " ") return key;
  if (!areOn && !ctrlKey && !metaKey) return "";
  const found = inLatin(key, code);
  return shiftKey ? found.toUpperCase() : found.toLowerCase();
}

// Keys that change something. Where the review is open for reading only they are refused before they ask anything.
const CHANGING = [..."cxfmnt2rjksguU"];
export const READ_ONLY = "This review is read-only.";
export function isRefused(key) {
  const isSo = store.run.read_only && CHANGING.includes(key);
  if (isSo) notify(READ_ONLY, true);
  return isSo;
}

// Milliseconds in which nobody can react to what they see.
export const REACTION_MS = 500;

// Track since when something can be decided on. A press counts at the time it was made, even if it is processed later.
export function makeScreen() {
  let since = Infinity, pauseEnd = -Infinity, latest = 0;
  return {
    since: () => since,
    // The content changed; a decision counts only after its `pictures`, if any, are visible, and after a pause.
    async changed(pictures = null, pauseMs = 0) {
      const change = ++latest;
      since = Infinity;
      await pictures;
      requestAnimationFrame(() => {
        if (change !== latest) return;
        if (pauseMs) pauseEnd = performance.now() + pauseMs;
        since = Math.max(performance.now(), pauseEnd);
      });
    },
    // Whether a press was made when all was there, and what it is about, which is there since `others`.
    wasSeen(event, others = -Infinity) {
      if (event.timeStamp >= Math.max(since, others)) return true;
      notify("The key was pressed before this could be seen, so nothing was done. Look, then press it again.", true);
      return false;
    },
  };
}

// Whether a click decides. Of a double click the first one does: the second one was aimed at what was there before it.
export function isFirst({ detail }) {
  if (detail <= 1) return true; // 0: a key
  notify("", false, { follows: "A double click counts once." });
  return false;
}

// Which states of the review were on the screen, and since when.
const KEPT = 100;
const drawn = [];
onChange(({ before }) => {
  if (!drawn.length) drawn.push({ since: -Infinity, seq: before });
  const { seq } = store;
  requestAnimationFrame(() => drawn.push({ since: performance.now(), seq }) > KEPT && drawn.shift());
});

const seqAt = (time) => (drawn.length ? (drawn.findLast(({ since }) => since <= time) ?? drawn[0]).seq : store.seq);

// The state that a decision was made on: that of the press whose turn it is, so that the server refuses what others
// have changed since then. What the presses before it did is no change by others.
let turn = null;
export const base = () => (turn && store.theirs > turn.seq ? turn.seq : store.seq);

// The person has looked again, at a question that followed from the first.
export const looked = () => turn && (turn.seq = store.seq);

// A press that was made before an error was on the screen was made on the belief that all went well.
function isAfterErrors(event) {
  if (event.timeStamp >= errorSince()) return true;
  notify("", true, { follows: "Keys pressed before this was shown were ignored too." });
  return false;
}

// Wait for the server; when that takes long, say so.
const PATIENCE = 500, WAITING = "Waiting for the server …";
export async function awaited(answer) {
  const timer = setTimeout(() => notify(WAITING, false, { stays: true }), PATIENCE);
  try {
    return await answer;
  } finally {
    clearTimeout(timer);
    clearNotification(WAITING);
  }
}

// Things to do come one after the other, each on what the one before has left, however fast they are asked for.
export function inOrder() {
  let last = Promise.resolve();
  return (does) => (last = last.then(() => does()).catch((error) => notify(error.message, true)));
}

// Presses in their order. `asks`: its question is opened at once, so that what is typed goes there; `does` is given a
// promise of its turn, which is false when the press came to nothing.
export function makePresses() {
  const later = inOrder();
  const press = (event, does, { wasSeen = () => true, asks = false } = {}) => {
    const current = { seq: seqAt(event.timeStamp) };
    let come = null;
    const ended = asks ? does(new Promise((done) => (come = done))) : null;
    return later(async () => {
      const before = turn;
      turn = current;
      try {
        const counts = isAfterErrors(event) && wasSeen(event);
        come?.(counts);
        if (counts) await (asks ? ended : does());
      } finally {
        turn = before;
      }
    });
  };
  return Object.assign(press, { later });
}
