// Grow a category: pages of candidates, each accepted or refused; a binary search accepts many at once.
import { getJson } from "/static/api.js";
import { answered, begun, isOver, nextOf, SHOWN } from "/static/bisection.js";
import { $, ask, bdi, button, images, make, notify } from "/static/dom.js";
import { isFirst, keyOf, looked, makeScreen } from "/static/presses.js";
import * as data from "/static/store.js";
import { strip } from "/static/strips.js";
import { isLarge, pictures, sharpen } from "/static/thumbs.js";

const PAGE = 24;
const ACCEPTED = "accept", REFUSED = "refuse";

// Ask about candidates for a category, from its `turn` on. `decide` is given the accepted and the refused images of a
// page, and whether a binary search found them; it resolves to whether they were saved.
export function askGrow(id, turn, decide) {
  return ask(`Grow ${data.nameOf(id)}`, (form, done) => {
    const place = make("div", { className: "grow" });
    place.append(make("p", { className: "muted", textContent: "Searching for similar images …" }));
    form.append(strip(data.typicalOf(id, SHOWN), `Most typical images of ${data.nameOf(id)}`), place);
    turn.then((counts) => counts && grow({ id, form, place, done, decide }).catch((error) => {
      done(null);
      notify(error.message, true);
    }));
  }, { large: true, turn });
}

async function grow({ id, form, place, done, decide }) {
  const passed = new Set(), screen = makeScreen();
  let total = 0, verbs = {};

  // Keys and buttons do the same. What is not yet on the screen cannot be decided.
  const press = (event, key) => isFirst(event) && screen.wasSeen(event) && verbs[key]?.();
  const verb = (words, key, settings = {}) => button(words, key, (event) => press(event, key), settings);
  const asks = (...words) => make("p", { id: "question", className: "question" }, ...words);
  const mainVerb = (words, key) => verb(words, key, { className: "main", aria: { describedby: "question candidates" } });
  const show = (question, note, pictured, tools) => {
    place.replaceChildren(question, note, pictured, make("div", { className: "tools bottom" }, ...tools));
    $("dialog").scrollTop = 0;
    screen.changed(pictures(place));
    if (data.store.run.has.originals) sharpenAll(pictured);
  };

  // Save what was decided, then show the next candidates, which are ranked by it.
  const save = async (accepted, refused) => {
    verbs = {};
    if (!(await decide(accepted, refused))) return done(null);
    total += accepted.length;
    return showNext();
  };

  async function showNext() {
    looked();
    const found = await getJson("/api/candidates", { category: id });
    if (!form.isConnected) return;
    const rows = found.rows.filter((row) => !passed.has(row));
    if (rows.length) return drawPage(rows);
    done(null);
    notify(`${images(total)} moved to ${data.nameOf(id)}. There are no other candidates.`);
  }

  function drawPage(rows, marks = new Map()) {
    const page = rows.slice(0, PAGE), grid = strip(page, "Candidates"), tiles = [...grid.children];
    const marked = (mark) => page.filter((row) => marks.get(row) === mark);
    const except = (mark) => page.filter((row) => marks.get(row) !== mark);
    const note = make("p", { id: "candidates", className: "muted", aria: { live: "polite" } });
    const drawMarks = () => {
      tiles.forEach((tile, at) => {
        tile.dataset.mark = marks.get(page[at]) ?? "";
        for (const one of tile.querySelectorAll("button")) one.ariaPressed = String(one.className === tile.dataset.mark);
      });
      const counts = `${marked(ACCEPTED).length} accepted and ${marked(REFUSED).length} refused on this page`;
      note.textContent = `${counts}; ${images(total)} moved before; ${images(rows.length)} to choose from`;
    };
    const mark = (row, value) => {
      if (marks.get(row) === value) marks.delete(row);
      else marks.set(row, value);
      drawMarks();
    };
    const focused = () => Math.max(0, tiles.findIndex((tile) => tile.contains(document.activeElement)));
    const go = (at) => tiles[Math.min(tiles.length - 1, Math.max(0, at))].querySelector("button").focus();
    const decideOne = (value) => {
      const at = focused();
      mark(page[at], value);
      go(at + 1);
    };
    const turnPage = (accepted, refused) => {
      page.forEach((row) => passed.add(row));
      return save(accepted, refused);
    };
    const columns = () => getComputedStyle(grid).gridTemplateColumns.split(" ").length;
    verbs = {
      y: () => decideOne(ACCEPTED),
      n: () => decideOne(REFUSED),
      Y: () => turnPage(except(REFUSED), marked(REFUSED)),
      N: () => turnPage(marked(ACCEPTED), except(ACCEPTED)),
      g: () => turnPage(marked(ACCEPTED), marked(REFUSED)),
      b: () => drawSearch(rows, marks),
      d: async () => (await decide(marked(ACCEPTED), marked(REFUSED))) && done(null),
      ArrowLeft: () => go(focused() - 1),
      ArrowRight: () => go(focused() + 1),
      ArrowUp: () => go(focused() - columns()),
      ArrowDown: () => go(focused() + columns()),
    };
    tiles.forEach((tile, at) => {
      const home = data.nameOf(data.store.category[page[at]]);
      const sign = (value, textContent, key) => make("button", {
        type: "button", className: value, textContent, title: `${value} (${key})`, ariaLabel: `${value}, now in ${home}`,
        on: { click: (event) => isFirst(event) && screen.wasSeen(event) && mark(page[at], value) },
      });
      const caption = make("span", { className: "caption" }, bdi(home));
      tile.append(sign(ACCEPTED, "✓", "y"), sign(REFUSED, "✗", "n"), caption);
    });
    drawMarks();
    show(asks("Which of these belong to ", bdi(data.nameOf(id)), "?"), note, grid, [
      mainVerb("Accept the rest ", "Y"), verb("Refuse the rest ", "N"), verb("Next page ", "g"),
      verb("Binary search ", "b"), verb("Done ", "d")]);
    go(0);
  }

  // Ask whether all candidates up to some place belong, except those that are refused, until that place is found.
  function drawSearch(all, marks, found = null, past = []) {
    const rows = all.filter((row) => marks.get(row) !== REFUSED), now = found ?? begun(rows.length);
    const { low } = now, at = nextOf(now), isEnd = isOver(now);
    if (isEnd && !low) {
      notify("One of the first candidates does not belong here: decide about each of them.");
      return drawPage(all, marks);
    }
    const step = (isYes) => drawSearch(all, marks, answered(now, isYes), [...past, now]);
    const back = () => (past.length ? drawSearch(all, marks, past.at(-1), past.slice(0, -1)) : drawPage(all, marks));
    const refused = all.filter((row) => marks.get(row) === REFUSED);
    const note = make("p", { id: "candidates", className: "muted" });
    if (isEnd) {
      verbs = { b: back, Enter: () => save(rows.slice(0, low), refused) };
      const last = strip(rows.slice(Math.max(0, low - PAGE), low).reverse(), "Images that will be moved, least similar first");
      show(asks(`${images(low)} will be moved here.`), note, last, [mainVerb(`Move ${images(low)} `, "Enter"), verb("Back ", "b")]);
    } else {
      verbs = { b: back, y: () => step(true), n: () => step(false) };
      const shown = rows.slice(Math.max(low, at - SHOWN), at);
      note.textContent = `candidates ${at - shown.length + 1} to ${at} of ${images(rows.length)}; ${images(low)} accepted so far`;
      show(asks("Do all of these belong to ", bdi(data.nameOf(id)), "?"), note, strip(shown, "Candidates"),
        [mainVerb("Yes ", "y"), verb("No ", "n"), verb("Back ", "b")]);
    }
    place.querySelector("button.main").focus();
  }

  // On the dialog: a click on a picture moves the focus out of the form, away from the button that Enter presses.
  $("dialog").onkeydown = (event) => {
    const { target, repeat } = event, key = keyOf(event), isOther = event.ctrlKey || event.metaKey || event.altKey;
    if (!Object.hasOwn(verbs, key) || isOther || (key === "Enter" && target.matches("button"))) return;
    event.preventDefault();
    if (!repeat || key.startsWith("Arrow")) press(event, key);
  };
  await showNext();
}

// Replace thumbnails by pictures with as many pixels as their tiles have.
function sharpenAll(pictured) {
  for (const tile of pictured.children) {
    const image = tile.querySelector("img"), size = image.clientWidth;
    if (isLarge(size)) pictures(tile).then(() => sharpen(Number(tile.dataset.row), image, size, () => image.isConnected));
  }
}
