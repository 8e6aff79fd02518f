// Growing a category: candidates ranked by likeness, and a binary search of yes and no for where they stop belonging.
import { getJson } from "/static/api.js";
import { $, ask, bdi, button, images, make, say, strip } from "/static/dom.js";
import { makeScreen } from "/static/presses.js";
import * as data from "/static/store.js";

const SHOWN = 12;

export async function askGrow(id) {
  let found;
  try {
    found = await getJson("/api/candidates", { category: id });
  } catch (error) {
    say(error.message, true);
    return null;
  }
  if (!found.rows.length) {
    say("There is no undecided image outside of this category.");
    return null;
  }
  return ask(`Grow ${data.nameOf(id)}`, (form, done) => search(form, done, id, found), { wide: true });
}

function search(form, done, id, { rows, likeness }) {
  // Candidates before `low` belong, those from `high` on do not; steps grow until the first no, then halve.
  let low = 0, high = rows.length, step = SHOWN, isOver = false;
  const past = [], screen = makeScreen();
  const middle = () => (high === rows.length ? Math.min(low + step, rows.length) : low + Math.ceil((high - low) / 2));
  const answer = (isYes) => {
    past.push([low, high, step]);
    const at = middle();
    if (isYes) {
      low = at;
      step *= 2;
    } else high = at;
    if (high - low <= 1 || low === rows.length) isOver = true;
    if (!isYes && high - low <= 1) high = low;
    draw();
  };
  const back = () => {
    [low, high, step] = past.pop() ?? [low, high, step];
    isOver = false;
    draw();
  };
  const take = () => (low ? done(rows.slice(0, low)) : done(null));
  const verbs = { y: () => isOver || answer(true), n: () => isOver || answer(false), b: () => past.length && back(), Enter: () => isOver && take() };
  const press = (event, key) => screen.wasSeen(event) && verbs[key]();
  const verb = (words, key, settings = {}) => button(words, key, (event) => press(event, key), settings);
  const draw = () => {
    if (isOver) drawEnd();
    else drawStep();
    screen.changed();
  };
  const own = make("section", {}, make("h3", {}, bdi(data.nameOf(id))), strip(data.typicalOf(id, SHOWN)));
  const place = make("div", { className: "grow" });
  const drawStep = () => {
    const at = middle();
    const shown = rows.slice(Math.max(low, at - SHOWN), at);
    place.replaceChildren(
      make("p", { className: "question", aria: { live: "polite" } }, "Do all of these belong to ", bdi(data.nameOf(id)), "?"),
      make("p", { className: "muted", textContent: `candidates ${at - shown.length + 1} to ${at} of ${images(rows.length)}, likeness ${likeness[at - 1].toFixed(2)}; ${images(low)} sure so far` }),
      strip(shown),
      make("div", { className: "tools" }, verb("Yes ", "y", { className: "main" }), verb("No ", "n"), verb("Back ", "b", { disabled: !past.length }), button(`Stop here, take ${images(low)}`, "", take, { disabled: !low })));
    place.querySelector("button.main").focus();
  };
  const drawEnd = () => {
    place.replaceChildren(
      make("p", { className: "question", aria: { live: "polite" }, textContent: low ? `${images(low)} will be moved here.` : "None of them belongs here." }),
      strip([...rows.slice(0, low).slice(-36)].reverse()),
      make("div", { className: "tools" }, verb(low ? `Move ${images(low)} ` : "Close ", "Enter", { className: "main" }), verb("Back ", "b")));
    place.querySelector("button.main").focus();
  };
  form.append(own, place);
  // Of the dialog: a click on a picture takes the focus out of the form, and with it from the button that Enter presses.
  $("dialog").onkeydown = (event) => {
    const { key, target, repeat } = event;
    if (!Object.hasOwn(verbs, key) || event.ctrlKey || event.metaKey || event.altKey || (key === "Enter" && target.matches("button"))) return;
    event.preventDefault();
    if (!repeat) press(event, key);
  };
  draw();
}
