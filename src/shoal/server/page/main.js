// The page put together: what is shown, its head, and what its controls do.
import { addressOf, CLEAR, fromAddress, isFiltered } from "/static/address.js";
import { me } from "/static/api.js";
import { awaitDetails, describe, drawDetails, inWords } from "/static/details.js";
import { askName, showHistory, showKeys, tellMisfits } from "/static/dialogs.js";
import {
  $, button, focusShown, images, isMore, isTyping, kindOf, make, number, raise, refill, say, showMenu, showMore,
} from "/static/dom.js";
import { Grid } from "/static/grid.js";
import { makeKeys } from "/static/keys.js";
import { drawMap, refreshMap } from "/static/map.js";
import { drawMerges } from "/static/panel.js";
import { areKeysOn, awaited, makePresses, makeScreen, turnKeys } from "/static/presses.js";
import { drawCategories, drawSide, markCurrent, sorted } from "/static/side.js";
import * as data from "/static/store.js";
import { strip } from "/static/strips.js";
import { makeVerbs } from "/static/verbs.js";

const { store } = data;
const view = { kind: "all", id: -1, order: "least", status: "", low: 0, high: 1, path: "", rows: null, found: null };
const MARKS = ["", "✓", "✕", "→", "?"];
const LISTS = ["all", "unsure", "none", "labels"], PANELS = ["merges", "map"];

const press = makePresses(), screen = makeScreen();

const grid = new Grid($("grid"), $("space"), $("box"), {
  focus: (row) => focusOn(row),
  select: (n) => drawSelected(n),
  click: (event, does) => press(event, does),
  box: () => screen.changed(), // it selects at once: a key that waits its turn was not about that
  open: (event, row) => press(event, (turn) => verbs.open(turn, row), needs("Enter")),
  status(row) {
    const status = store.status[row];
    const lines = view.kind === "category" || view.kind === "none" ? [] : captionOf(row);
    return { word: store.run.statuses[status], mark: MARKS[status], isOff: data.isSuspected(row), lines };
  },
  rest: async (rows, tell) => {
    for (const image of await describe(rows).catch(() => [])) tell(image.row, inWords(image));
  },
});

// What a tile says where images of several categories are: its own, and the one that speaks against its label.
function captionOf(row) {
  const own = data.nameOf(store.category[row]);
  if (view.kind !== "labels" || !data.isSuspected(row)) return [own];
  const around = data.aroundOf(row);
  return [own, `or ${around === own ? data.nameOf(data.givenOf(row)) : around}?`];
}

// Show something else. Until all of it is there, rows that were asked for too, the view is what it was.
let turn = 0;
async function go(change, { isFromAddress = false, from = document.activeElement } = {}) {
  const mine = ++turn, path = change.path ?? view.path;
  const asked = path ? data.withPath(path) : null;
  const [found, rows = null] = await awaited(Promise.all([asked, change.rows]));
  if (mine !== turn) return;
  Object.assign(view, { id: -1, row: -1, lasso: "", focus: -1 }, change, { found, rows });
  screen.changed();
  const address = addressOf(view);
  if (!isFromAddress) history.pushState(null, "", address);
  else if (location.hash !== address) history.replaceState(null, "", address);
  if (!isTyping(from)) showMenu(false);
  if (markCurrent(view) || !document.body.dataset.ready) sideSoon();
  else drawSide(view, visit);
  draw();
}

const showAddress = () => {
  const kinds = [...LISTS, ...PANELS];
  return fromAddress((change) => go(change, { isFromAddress: true }), { similar: verbs.similar, kinds });
};

// The same, but for something.
const refine = (change) => go({ ...view, ...change });

// A click or Enter that shows something else comes after the presses before it; keys go to the images then.
const visit = (event, change) => {
  const from = document.activeElement;
  return press(event, async () => {
    await go(change, { from });
    if (!isTyping(from)) focusShown();
  });
};

// What a person chooses on a card of two categories, and on the map.
const decide = (event, action, words) => press(event, () => does(action, () => words));
const showLasso = (lasso, rows) => visit({ timeStamp: performance.now() }, { kind: "lasso", lasso, rows });

function draw({ isSame = false, isOwn = false } = {}) {
  drawHead();
  const isPanel = PANELS.includes(view.kind), goes = $(isPanel ? "grid" : "panel");
  const hadFocus = goes.contains(document.activeElement);
  $("grid").hidden = $("filters").hidden = isPanel;
  $("panel").hidden = !isPanel;
  if (hadFocus) focusShown();
  if (isPanel) {
    $("nothing").hidden = true;
    $("panel").ariaLabel = TITLES[view.kind];
    grid.show(new Uint32Array(0));
    if (view.kind === "merges") drawMerges(decide, { isSame, isOwn });
    else drawMap(store.categories.has(view.focus) ? view.focus : null, showLasso);
    return;
  }
  const isAll = view.kind === "all" && view.status === "" && !view.found; // no action adds to it or takes from it
  const rows = isSame && isAll ? grid.rows : data.rowsOf(view);
  grid.canBeSharp = store.run.has.originals;
  grid.show(rows, { isSame });
  drawNothing(rows.length);
  const what = view.kind === "category" ? data.nameOf(view.id) : TITLES[view.kind];
  $("grid").setAttribute("aria-label", `Images of ${what}`);
  let decided = 0;
  for (const row of rows) if (store.status[row] !== data.PREDICTED) decided++;
  const { reachable } = grid;
  const cut = rows.length >= reachable ? `, the first ${number(reachable)} shown: filter to see others` : "";
  $("count").textContent = `${images(rows.length)}, ${number(decided)} decided${cut}`;
  $("order").value = view.order;
  $("order").disabled = $("order").hidden = ["unsure", "labels", "similar", "lasso"].includes(view.kind);
  if (view.kind === "labels") $("facts").textContent = aboutLabels(rows);
  $("status").value = view.status === "" ? "" : String(view.status);
  for (const name of ["low", "high", "path"]) if (document.activeElement !== $(name)) $(name).value = view[name];
}

// Why there is no image: filters may hide them, those of the view before for example.
function drawNothing(n) {
  const hidden = n || !isFiltered(view) ? 0 : data.rowsOf({ ...view, ...CLEAR, found: null }).length;
  $("nothing").hidden = n > 0;
  $("nothing").firstChild.textContent = hidden ? `The filters hide ${images(hidden)} here.` : "There is no image here.";
  $("clear").hidden = !hidden;
}

const TITLES = {
  all: "All images", unsure: "Uncertain", none: "Without category", labels: "Suspected labels",
  merges: "Suggested merges", map: "Map", similar: "Similar images", lasso: "From the map",
};
const ABOUT = {
  unsure: "Flagged by somebody, or more likely wrong than right; the least confident first.",
  none: "Rejected images and those that came without a category: move them (m), or find similar ones (l).",
  similar: "The most alike first, the image itself at the front.",
};

// Of suspected labels. A run mostly puts labeled images into the categories of their labels.
function aboutLabels(rows) {
  const areKept = rows.every((row) => store.category[row] === data.givenOf(row));
  const keys = areKept ? "c keeps the label, 2 takes the other" : "c keeps the first name, 2 takes the second choice";
  return `The images around speak for another category than the label, the surest first: ${keys}, x throws it out.`;
}

function factsOf({ id }) {
  const size = images(data.sizeOf(id)), open = number(data.openOf(id));
  return `${size}, ${open} undecided, confidence ${data.sureOf(id).toFixed(2)}`;
}

// Drawn anew only where another name or category stands there: an action mostly changes numbers alone.
let headOf = "";
function drawHead() {
  const category = view.kind === "category" ? store.categories.get(view.id) : null;
  const isNew = category?.novel && category.nearest !== undefined;
  const near = isNew ? store.categories.get(data.today(category.nearest)) : null;
  const head = JSON.stringify([view.kind, category, near]);
  if (category) $("facts").textContent = factsOf(category);
  drawTop();
  if (head === headOf) return;
  headOf = head;
  $("name").textContent = category ? category.name : TITLES[view.kind];
  document.title = `${category ? category.name : TITLES[view.kind]} · ${store.run.title} · Shoal review`;
  $("kind").hidden = !category;
  $("nearest").hidden = true;
  $("facts").textContent = ABOUT[view.kind] ?? "";
  if (category) {
    $("kind").textContent = kindOf(category);
    $("kind").className = `kind ${kindOf(category)}`;
    $("facts").textContent = factsOf(category);
    if (category.mixed) {
      $("nearest").hidden = false;
      const [stay, leave] = category.mixed.sides.map(([labeled, unlabeled]) =>
        [labeled && `${number(labeled)} labeled`, `${number(unlabeled)} unlabeled`].filter(Boolean).join(" and "));
      const sides = `${stay} images on one side, ${leave} on the other`;
      const words = `May hold another category: ${sides}. Split (s) shows both.`;
      const shown = strip(category.mixed.rows, "Images that may be another category");
      $("nearest").replaceChildren(make("span", { textContent: words }), shown);
    } else if (near && near.id !== category.id) {
      $("nearest").hidden = false;
      const likeness = ` (${category.similarity?.toFixed(2) ?? "–"})`;
      const name = make("bdi", { textContent: near.name });
      const asked = make("span", {}, "Is it really new? Nearest known: ", name, likeness);
      $("nearest").replaceChildren(asked, strip(data.typicalOf(near.id, 8), `Most typical images of ${near.name}`));
    }
  }
  drawVerbs(category);
}

const verb = (words, key, does, settings) =>
  button(words, key, (event) => press(event, does, needs(key)), settings);

// What the first button confirms: the selected images that are not yet; with none selected the category, or the image
// in focus.
function confirmWords() {
  if (!grid.selected.size) return view.kind === "category" ? "Confirm all " : "Confirm ";
  const n = verbs.toConfirm().length;
  return n ? `Confirm ${number(n)} ` : "Confirm ";
}

function drawVerbs(category) {
  const list = [], isGrid = !PANELS.includes(view.kind), words = confirmWords();
  const [first, key, does] = view.kind === "none" ? ["Move ", "m", verbs.move] : [words, "c", verbs.confirm];
  if (!store.run.read_only && isGrid) list.push(verb(first, key, does, { className: "main" }));
  if (!store.run.read_only && category) {
    list.push(verb("Rename ", "r", verbs.rename), verb("Merge ", "j", verbs.merge), verb("Split ", "s", verbs.split));
    list.push(verb("Grow ", "g", verbs.grow));
  }
  if (category) {
    list.push(button("On the map", "", (event) => visit(event, { kind: "map", focus: category.id })));
  }
  refill($("verbs"), list);
}

function drawSelected(n) {
  const bar = $("selected");
  const isOther = bar.hidden === Boolean(n) || (bar.dataset.n === "1") !== (n === 1); // with one there are more buttons
  const main = view.kind === "none" ? null : $("verbs").querySelector("button.main");
  if (main) main.firstChild.textContent = confirmWords();
  bar.hidden = !n;
  bar.dataset.n = n;
  $("heard").textContent = n ? `${number(n)} selected` : ""; // for whoever does not see the bar
  if (!n) return isOther && grid.cover(0);
  const list = [make("strong", { textContent: `${number(n)} selected` })];
  if (!store.run.read_only) {
    list.push(verb("Confirm ", "c", verbs.confirm), verb("Reject ", "x", verbs.reject), verb("Flag ", "f", verbs.flag));
    list.push(verb("Move ", "m", verbs.move), verb("New ", "n", verbs.create, { title: "A new category of them" }));
  }
  if (n === 1) { // on a narrow page nothing else offers it
    list.push(verb("Enlarge ", "Enter", (turn) => verbs.open(turn), { className: "narrow" }));
    list.push(verb("Similar ", "l", () => verbs.similar(), { className: "narrow" }));
  }
  list.push(verb("None ", "Esc", verbs.none, { title: "Select none" }));
  bar.replaceChildren(...list);
  if (isOther) grid.cover($("grid").getBoundingClientRect().bottom - bar.getBoundingClientRect().top);
}

function drawTop() {
  const decided = store.n - store.counts[data.PREDICTED], share = (n) => (store.n ? (100 * n) / store.n : 0);
  const labeled = store.labeled ? `, ${number(store.labeled)} more labeled` : "";
  $("bar").setAttribute("aria-valuenow", share(decided).toFixed(0));
  $("bar").firstChild.style.width = `${share(decided)}%`;
  $("bar").lastChild.style.width = `${share(store.labeled)}%`;
  $("done-words").textContent = `${number(decided)} of ${images(store.n)} decided${labeled}`;
  $("undo").disabled = !store.undo || store.run.read_only;
  $("redo").disabled = !store.redo || store.run.read_only;
  $("undo").title = store.undo && `Undo: ${store.undo}`;
  $("redo").title = store.redo && `Redo: ${store.redo}`;
  document.body.dataset.seq = store.seq;
}

let focusTimer = 0;
function focusOn(row) {
  awaitDetails(row);
  clearTimeout(focusTimer);
  focusTimer = setTimeout(() => drawDetails(row, verbs, press).catch(() => {}), 60);
}

const { does, verbs } = makeVerbs({ grid, view, go, refine });
const { pressKey, needs } = makeKeys({ grid, view, verbs, press, screen });

function wire() {
  raise();
  document.addEventListener("keydown", pressKey);
  document.querySelector(".skip").onclick = (event) => {
    event.preventDefault(); // the address is that of the view
    focusShown();
  };
  window.addEventListener("popstate", (event) => {
    $("dialog").close(); // what it asks is about the view before
    press(event, showAddress);
  });
  $("undo").onclick = (event) => press(event, verbs.undo);
  $("redo").onclick = (event) => press(event, verbs.redo);
  $("help").onclick = showKeys;
  $("history").onclick = showHistory;
  $("all").onclick = (event) => press(event, verbs.all, needs("a"));
  $("menu").onclick = () => showMenu(!document.body.classList.contains("menu"));
  $("main").addEventListener("pointerdown", () => showMenu(false));
  $("more").onclick = () => showMore(!isMore());
  document.addEventListener("click", ({ target, detail }) => {
    if (!target.closest("#more")) showMore(false);
    const isTool = target.closest("#top button, #verbs button, #filters button");
    const goes = target.closest("#details button, #nothing button, #selected button"); // and the focus with it
    if (((isTool && detail) || goes) && !$("dialog").open) focusShown(); // keys go to the images then
  });
  $("find").oninput = () => drawCategories(view, visit);
  $("find").onkeydown = (event) => {
    const [first] = event.key === "Enter" && !event.isComposing && !event.repeat ? sorted() : [];
    if (first) visit(event, { kind: "category", id: first.id });
  };
  $("sort").onchange = () => {
    drawCategories(view, visit);
    history.replaceState(null, "", addressOf(view));
  };
  $("status").append(...store.run.statuses.map((word, at) => make("option", { value: String(at), textContent: word })));
  const filter = (event, change) => press(event, async () => {
    await refine(change);
    $("heard").textContent = $("count").textContent;
  });
  const status = () => ($("status").value === "" ? "" : Number($("status").value));
  const share = (name) => Math.min(1, Math.max(0, Number($(name).value) || 0));
  $("order").onchange = (event) => filter(event, { order: $("order").value });
  $("status").onchange = (event) => filter(event, { status: status() });
  for (const name of ["low", "high"]) $(name).onchange = (event) => filter(event, { [name]: share(name) });
  $("clear").onclick = (event) => filter(event, CLEAR);
  $("path").onchange = (event) => filter(event, { path: $("path").value.trim() });
  $("size").oninput = () => {
    localStorage.setItem("shoal-size", $("size").value);
    grid.resize(Number($("size").value));
  };
  const fit = Math.round(Math.min(176, Math.max(96, innerWidth / 12)) / 4) * 4;
  const size = Number(localStorage.getItem("shoal-size")) || fit;
  $("size").value = size;
  grid.resize(size);
  $("who").onclick = async () => {
    const name = (await askName(() => "Who is reviewing?", {
      value: me(), verb: "That is me", hint: () => "Written beside everything you do.", isCategory: false,
    }))?.slice(0, 80);
    if (!name) return;
    localStorage.setItem("shoal-who", name);
    $("who").textContent = name;
    await data.rename(name).then(drawTop, (error) => say(error.message, true));
  };
  $("who").textContent = me() || "Who are you?";
  $("who").hidden = store.run.read_only;
  const turned = (areOn) => {
    turnKeys(areOn);
    document.body.classList.toggle("no-keys", !areOn);
    $("single").textContent = `Single keys: ${areOn ? "on" : "off"}`;
  };
  turned(areKeysOn());
  $("single").onclick = () => turned(!areKeysOn());
  const themed = (theme) => {
    document.documentElement.dataset.theme = theme;
    $("theme").textContent = theme === "dark" ? "Light" : "Dark";
  };
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  themed(localStorage.getItem("shoal-theme") ?? (isDark ? "dark" : "light"));
  $("theme").onclick = () => {
    themed(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    localStorage.setItem("shoal-theme", document.documentElement.dataset.theme);
    if (view.kind === "map") draw();
  };
}

const isEqual = (some, others) => some.length === others.length && some.every((row, at) => row === others[at]);

// The list is long: it is drawn again when nothing has happened for a moment.
let sideTimer = 0;
function sideSoon() {
  clearTimeout(sideTimer);
  sideTimer = setTimeout(() => (data.isActing() ? sideSoon() : drawSide(view, visit)), 250);
}

async function start() {
  const began = performance.now();
  await data.load(localStorage.getItem("shoal-who") ?? "");
  $("title").textContent = store.run.title;
  wire();
  data.onChange(({ others }) => {
    const into = store.categories.get(view.id)?.into ?? null;
    if (view.kind === "category" && into !== null) view.id = into;
    if (view.kind === "category" && !store.categories.has(view.id)) return go({ kind: "all" });
    const before = grid.rows, focused = grid.focused;
    if (view.kind === "map") refreshMap();
    else draw({ isSame: true, isOwn: !others.length });
    // What others did to this view has to be seen before a press counts for it.
    if (others.length && (grid.focused !== focused || !isEqual(before, grid.rows))) screen.changed();
    drawTop();
    sideSoon();
    const last = others.at(-1);
    if (last) say(`${last.by}${last.by === me() ? ", elsewhere" : ""}: ${last.words}`, false, { isNews: true });
  });
  await showAddress();
  if (!isTyping(document.body)) focusShown();
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done))); // images first, the long list after them
  clearTimeout(sideTimer);
  drawSide(view, visit);
  sideSoon();
  document.body.dataset.ready = (performance.now() - began).toFixed(0);
  tellMisfits().then(() => store.run.asks_who && !me() && $("who").click());
  data.listen((problem) => {
    $("banner").hidden = !problem;
    if (problem) $("banner").textContent = problem;
    else if ($("details").ariaBusy === "true") focusOn(grid.focused); // it could not be asked for before
  });
}

start().catch((error) => {
  $("banner").hidden = false;
  $("banner").textContent = error.message;
});

window.shoal = { store, view, grid }; // for whoever looks into the page with developer tools
