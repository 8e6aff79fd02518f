// Growing a category: candidates ranked by likeness, and a binary search of yes and no for where they stop belonging.
import { getJson } from "/static/api.js";
import { answered, begun, isOver, nextOf, SHOWN } from "/static/bisection.js";
import { $, ask, bdi, button, images, make, say } from "/static/dom.js";
import { isFirst, keyOf, makeScreen } from "/static/presses.js";
import * as data from "/static/store.js";
import { strip } from "/static/strips.js";
import { pictures } from "/static/thumbs.js";

// The images that a category shall have besides, or null; opened at once, the search begins at its `turn`.
export function askGrow(id, turn) {
  return ask(`Grow ${data.nameOf(id)}`, (form, done) => {
    const waiting = make("p", { className: "muted", textContent: "Looking for images like those of the category …" });
    form.append(waiting);
    const start = async () => {
      const found = await getJson("/api/candidates", { category: id });
      if (!form.isConnected) return;
      if (!found.rows.length) throw new Error("There is no undecided image outside of this category.");
      waiting.remove();
      search(form, done, id, found);
    };
    const failed = (error) => {
      done(null);
      say(error.message, true);
    };
    turn.then((counts) => counts && start().catch(failed));
  }, { wide: true, turn });
}

function search(form, done, id, { rows, likeness }) {
  let found = begun(rows.length);
  const past = [], screen = makeScreen();
  const answer = (isYes) => {
    past.push(found);
    found = answered(found, isYes);
    draw();
  };
  const back = () => {
    found = past.pop();
    draw();
  };
  const take = () => done(found.low ? rows.slice(0, found.low) : null);
  const verbs = {
    y: () => isOver(found) || answer(true),
    n: () => isOver(found) || answer(false),
    b: () => past.length && back(),
    Enter: () => isOver(found) && take(),
  };
  const press = (event, key) => (key === "b" || isFirst(event)) && screen.wasSeen(event) && verbs[key]();
  const verb = (words, key, settings = {}) => button(words, key, (event) => press(event, key), settings);
  const place = make("div", { className: "grow" });
  // Read out with the button that is in focus then: a live text that is made anew need not be.
  const asks = (...words) => make("p", { id: "question", className: "question" }, ...words);
  const main = (words, key) => verb(words, key, { className: "main", aria: { describedby: "question candidates" } });
  const drawStep = () => {
    const { low } = found, at = nextOf(found), shown = rows.slice(Math.max(low, at - SHOWN), at);
    const which = `candidates ${at - shown.length + 1} to ${at} of ${images(rows.length)}`;
    const told = `${which}, likeness ${likeness[at - 1].toFixed(2)}; ${images(low)} sure so far`;
    const back = verb("Back ", "b", { disabled: !past.length });
    const stop = button(`Stop here, take ${images(low)}`, "", take, { disabled: !low });
    place.replaceChildren(
      asks("Do all of these belong to ", bdi(data.nameOf(id)), "?"),
      make("p", { id: "candidates", className: "muted", textContent: told }),
      strip(shown, "Candidates"),
      make("div", { className: "tools" }, main("Yes ", "y"), verb("No ", "n"), back, stop));
  };
  const drawEnd = () => {
    const { low } = found;
    const end = main(low ? `Move ${images(low)} ` : "Close ", "Enter");
    place.replaceChildren(
      asks(low ? `${images(low)} will be moved here.` : "None of them belongs here."),
      strip([...rows.slice(0, low).slice(-36)].reverse(), "Images that will be moved, the least alike first"),
      make("div", { className: "tools" }, end, verb("Back ", "b")));
  };
  const draw = () => {
    if (isOver(found)) drawEnd();
    else drawStep();
    place.querySelector("button.main").focus();
    screen.changed(pictures(place));
  };
  const typical = strip(data.typicalOf(id, SHOWN), `Most typical images of ${data.nameOf(id)}`);
  const own = make("section", {}, make("h3", {}, bdi(data.nameOf(id))), typical);
  form.append(own, place);
  // Of the dialog: a click on a picture takes the focus out of the form, and so from the button that Enter presses.
  $("dialog").onkeydown = (event) => {
    const { target, repeat } = event, key = keyOf(event), isOther = event.ctrlKey || event.metaKey || event.altKey;
    if (!Object.hasOwn(verbs, key) || isOther || (key === "Enter" && target.matches("button"))) return;
    event.preventDefault();
    if (!repeat) press(event, key);
  };
  draw();
}
