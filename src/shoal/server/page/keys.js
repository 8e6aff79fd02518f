// What each key does, and what must be visible before it counts.
import { wasDetailed } from "/static/details.js";
import { showKeys } from "/static/dialogs.js";
import { $, focusShown, isMore, showMenu, showMore } from "/static/dom.js";
import { isFirst, isRefused, keyOf } from "/static/presses.js";

const MOVES = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "PageUp", "PageDown"];

// Keys that repeat while held down. Each decision needs its own press.
const REPEATED = [...MOVES, "[", "]"];

// Keys that need nothing to be seen first, keys that decide about images, keys about the second choice, which is shown
// in the details of the image in focus, and keys that open a dialog.
const AHEAD = [...REPEATED, "u", "U", "o", "Escape"];
const DECIDING = ["c", "x", "f", "m", "n", "t", "2", "b"];
const SECOND = ["2", "b"];
const ASKING = ["m", "n", "t", "r", "j", "k", "s", "g", "Enter"];

// Keys that act immediately, without waiting for the server or earlier presses.
const AT_ONCE = {
  "?": showKeys,
  "/"() {
    showMenu(true);
    $("find").focus();
    $("find").select();
  },
};

export function makeKeys({ grid, view, verbs, press, screen }) {
  const keys = {
    c: verbs.confirm, x: verbs.reject, f: verbs.flag, m: verbs.move, n: verbs.create, r: verbs.rename, s: verbs.split,
    j: verbs.merge, k: verbs.cut, t: verbs.note, g: verbs.grow, u: verbs.undo, U: verbs.redo, a: verbs.all, o: verbs.order,
    l: () => verbs.similar(), 2: () => verbs.second(),
    "]": () => verbs.step(1), "[": () => verbs.step(-1),
    Escape() {
      showMenu(false);
      if (isMore()) showMore(false);
      else verbs.none();
    },
    " "() {
      if (grid.focused < 0) return;
      grid.toggle(grid.focused);
      grid.reveal(grid.focus);
    },
    Enter: (turn) => verbs.open(turn),
  };
  const withCtrl = { z: "u", Z: "U", y: "U", a: "a" };

  // What a press decides about must be visible: the selected images, those of the category, or the one in focus.
  function wasSeen(event, key) {
    if (!DECIDING.includes(key)) return screen.wasSeen(event);
    const { selected, focused } = grid, isAll = key === "c" && view.kind === "category";
    const isAbout = (row) => (selected.size && !SECOND.includes(key) ? selected.has(row) : isAll || row === focused);
    return isFirst(event) && screen.wasSeen(event, grid.shownSince(isAbout));
  }

  // Conditions for a press when its turn comes, also for the button with this key.
  const needs = (key, settings = {}) =>
    ({ asks: ASKING.includes(key), wasSeen: (event) => wasSeen(event, key), ...settings });

  const isOnScreen = (event, key) =>
    AHEAD.includes(key) || (wasSeen(event, key) && (!SECOND.includes(key) || wasDetailed(event, grid.focused)));

  function pressWithCtrl(event) {
    const key = withCtrl[keyOf(event)];
    if (!key) return;
    event.preventDefault();
    if (!event.repeat && !isRefused(key)) press(event, keys[key], key === "a" ? needs(key) : {});
  }

  function pressKey(event) {
    const { shiftKey, repeat, target } = event, key = keyOf(event);
    if (repeat && key === "Enter") event.preventDefault(); // a held key would press a button repeatedly
    const isBracket = ["[", "]"].includes(event.key); // on many layouts with Alt, or with AltGr, which may be Ctrl+Alt
    if ($("dialog").open || event.defaultPrevented) return; // such as a key that has closed the dialog
    if (event.altKey && !isBracket) return;
    if (target.matches("input, select, textarea")) {
      if (key !== "Escape") return;
      showMenu(false);
      if (target.type === "search" && target.value) {
        target.value = ""; // the browser would empty the field without telling whoever listens
        target.dispatchEvent(new Event("input"));
      }
      focusShown();
      return;
    }
    if ((event.ctrlKey || event.metaKey) && !(event.altKey && isBracket)) return pressWithCtrl(event);
    if (target.matches("button, a, canvas, #panel, .merge") && ["Enter", " ", ...MOVES].includes(key)) return;
    const isAtOnce = Object.hasOwn(AT_ONCE, key);
    if (!isAtOnce && !Object.hasOwn(keys, key) && !MOVES.includes(key)) return;
    event.preventDefault();
    if (repeat && !REPEATED.includes(key)) return;
    if (isAtOnce) return AT_ONCE[key]();
    if (isRefused(key)) return;
    const does = MOVES.includes(key) ? () => grid.move(key, { extend: shiftKey }) : keys[key];
    press(event, does, { ...needs(key), wasSeen: (event) => isOnScreen(event, key) });
  }

  return { pressKey, needs };
}
