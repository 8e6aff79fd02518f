// Elements. Text goes in as text, never as markup.
import { showThumbnail } from "/static/thumbs.js";
import { offChange, onChange } from "/static/store.js";

export const $ = (id) => document.getElementById(id);

export function make(tag, settings = {}, ...children) {
  const { on = {}, aria = {}, data = {}, ...properties } = settings;
  const element = Object.assign(document.createElement(tag), properties);
  for (const [name, value] of Object.entries(aria)) element.setAttribute(`aria-${name}`, value);
  for (const [name, listener] of Object.entries(on)) element.addEventListener(name, listener);
  Object.assign(element.dataset, data);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Names come from labels and may be of any length; whole ones are shown on hover.
const LONGEST = 80;
export const clamped = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text);
export const bdi = (text) => make("bdi", { textContent: clamped(text), title: text === clamped(text) ? "" : text });
const format = new Intl.NumberFormat("en");
export const number = (n) => format.format(n);
export const images = (n) => `${number(n)} image${n === 1 ? "" : "s"}`;

// A time of the log, which is in UTC, as local time in ISO format: 2026-11-17 07:05 (the Swedish locale uses it).
const clock = new Intl.DateTimeFormat("sv", { dateStyle: "short", timeStyle: "short" });
export const moment = (at) => (Number.isNaN(Date.parse(at)) ? at.slice(0, 16) : clock.format(new Date(at)));
export const digits = (value) => (value === null || value === undefined ? "–" : value.toFixed(2));

export function button(words, key, listener, settings = {}) {
  const hint = key ? make("kbd", { textContent: key }) : null;
  return make("button", { type: "button", on: { click: listener }, ...settings }, words, hint);
}

export function thumb(row, settings = {}) {
  const image = make("img", { alt: "", decoding: "async" });
  showThumbnail(row, image);
  return make("span", { className: "thumb", data: { row }, ...settings }, image);
}

// Words for screen readers alone.
export const visuallyHidden = (textContent) => make("span", { className: "visually-hidden", textContent });

export const kindOf = (category) => (category.novel ? "novel" : "known");

// Replace the children of a list. Existing ones stay, so that focus and scroll position are kept. If the focused element
// was recreated, its successor gets the focus, but never a button of a card that makes another decision.
export function arrange(list, wanted) {
  const { scrollTop } = list, focused = document.activeElement, before = [...list.children];
  const place = before.findIndex((child) => child.contains(focused)), child = before[place];
  const which = child && buttonsOf(child).indexOf(focused), stays = new Set(wanted);
  for (const child of before) if (!stays.has(child)) child.remove();
  wanted.forEach((child, at) => list.children[at] === child || list.insertBefore(child, list.children[at] ?? null));
  list.scrollTop = scrollTop;
  if (!child || list.contains(document.activeElement)) return;
  const same = wanted.find((one) => idOf(one) !== undefined && idOf(one) === idOf(child));
  const next = same ?? wanted[Math.min(place, wanted.length - 1)] ?? list, buttons = buttonsOf(next);
  const isMeant = same || buttons[which]?.matches("[data-again]"), sameButton = isMeant ? buttons[which] : null;
  const found = next.matches("article") ? sameButton ?? next : buttons[which] ?? buttons[0];
  found?.focus({ preventScroll: Boolean(same) });
}

const idOf = (child) => child.dataset.id ?? child.querySelector("[data-id]")?.dataset.id;
const buttonsOf = (child) => (child.matches("button") ? [child] : [...child.querySelectorAll("button")]);

// A notification lies above everything, a dialog too.
export function raise() {
  $("notification").hidePopover?.();
  $("notification").showPopover?.();
}

// Since when the last error is on the screen.
let since = -Infinity;
export const errorSince = () => since;

// Say something. What `follows` from an error is added to it, once; other people's news do not take its place.
let quiet = 0;
export function notify(words, isError = false, { follows = "", isNews = false, stays = false } = {}) {
  const place = $("notification");
  if (isNews && place.className === "shown error") return;
  if (isError && !follows) {
    since = Infinity;
    requestAnimationFrame(() => (since = performance.now()));
  }
  const before = place.className ? place.textContent.replace(/\.?$/, ". ") : "";
  if (!follows) place.textContent = words;
  else if (!before.trimEnd().endsWith(follows)) place.textContent = before + follows;
  place.className = isError || (follows && place.className === "shown error") ? "shown error" : "shown";
  clearTimeout(quiet);
  if (!stays) quiet = setTimeout(() => (place.className = ""), isError ? 8000 : 3500);
}

// Remove a notification that no longer holds.
export function clearNotification(words) {
  if ($("notification").textContent === words) $("notification").textContent = $("notification").className = "";
}

// A dialog with a form; resolves when it is closed, to what `done` was given, or null. What `build` gives back is
// called whenever somebody else has changed something, until then, and when the press that asked has its `turn`.
export function ask(title, build, { wide = false, large = false, turn = null } = {}) {
  return new Promise((resolve) => {
    const dialog = $("dialog"), before = dialog.onclose;
    dialog.close();
    before?.(); // now: the browser would tell of it when this one is open
    let answer = null;
    const done = (value) => {
      answer = value;
      dialog.close();
    };
    const heading = make("h2", { id: "dialog-title", textContent: title });
    const close = button("Close", "", () => done(null), { className: "quiet" });
    const form = make("form", { method: "dialog", tabIndex: -1, on: { submit: (event) => event.preventDefault() } });
    const top = make("div", { className: "dialog-top" }, heading, close);
    dialog.replaceChildren(top, form, $("notification")); // the rest is not read out
    dialog.className = large ? "large" : wide ? "wide" : "";
    dialog.setAttribute("aria-labelledby", "dialog-title");
    dialog.onkeydown = null;
    let changed = null;
    dialog.onclose = () => {
      if (dialog.open) return; // the event is about the previous dialog
      dialog.onclose = null;
      offChange(changed);
      document.body.append($("notification"));
      raise();
      dialog.replaceChildren();
      resolve(answer);
      focusShown();
    };
    changed = build(form, done) ?? null;
    if (changed) onChange(changed);
    turn?.then((counts) => form.isConnected && (counts ? changed?.() : done(null)));
    dialog.showModal();
    raise();
    const first = form.querySelector("[autofocus]") ?? form.querySelector("input, button");
    (first ?? form).focus();
    dialog.scrollTop = 0; // what has to be read begins at its top, even if the first field is below
  });
}

// Give a place other buttons. Whoever has one in focus finds the one of the same name there, or else what is shown.
export function refill(place, buttons) {
  const { textContent } = document.activeElement, hadFocus = place.contains(document.activeElement);
  place.replaceChildren(...buttons);
  if (!hadFocus) return;
  const same = buttons.find((one) => one.textContent === textContent);
  if (same) same.focus({ preventScroll: true });
  else focusShown();
}

// Keys go to what is shown: the images, or what takes their place. Whoever has no mouse need not pass every category.
export function focusShown() {
  const item = $("panel").querySelector("[role=treeitem][tabindex='0']");
  const shown = $("grid").hidden ? item ?? $("panel") : $("grid");
  shown.focus({ preventScroll: true });
}

// Whether a person has gone to a field since the focus was elsewhere: what is typed there is no command.
export const isTyping = (from) =>
  document.activeElement !== from && document.activeElement.matches("input, select, textarea");

// On a narrow page the categories, and some of the tools at the top, are behind a button each.
export function showMenu(isShown) {
  document.body.classList.toggle("menu", isShown);
  $("menu").setAttribute("aria-expanded", isShown);
}

export const isMore = () => $("more").getAttribute("aria-expanded") === "true";
export const showMore = (isShown) => $("more").setAttribute("aria-expanded", isShown);
