// The page put together: the view and its address, the verbs, and what each key does.
import { getJson, introduce, me } from "/static/api.js";
import { describe, drawDetails, inWords, wasDetailed } from "/static/details.js";
import { askName, showHistory, showKeys, tellMisfits } from "/static/dialogs.js";
import { $, button, images, kindOf, make, number, raise, say, strip } from "/static/dom.js";
import { Grid } from "/static/grid.js";
import { drawMap, rowsInside } from "/static/map.js";
import { drawMerges } from "/static/panel.js";
import { awaited, makePresses, makeScreen } from "/static/presses.js";
import { drawCategories, drawSide, markCurrent, nextOpen } from "/static/side.js";
import * as data from "/static/store.js";
import { makeVerbs } from "/static/verbs.js";

const { store } = data;
const view = { kind: "all", id: -1, order: "least", status: "", low: 0, high: 1, path: "", rows: null, found: null };
const MARKS = ["", "✓", "✕", "→", "?"];
const PANELS = ["merges", "map"];
const MOST_FOUND = 20000; // images that the server finds by their path

const press = makePresses(), screen = makeScreen();
const SEEN = { wasSeen: screen.wasSeen };

const grid = new Grid($("grid"), $("space"), $("box"), {
  focus: (row) => focusOn(row),
  select: (n) => drawSelected(n),
  click: (event, does) => press(event, does),
  box: () => screen.changed(), // it selects at once: a key that waits its turn was not about that
  open: (event, row) => press(event, () => verbs.open(row), { ...SEEN, waits: true }),
  status: (row) => ({ word: store.run.statuses[store.status[row]], mark: MARKS[store.status[row]], isOff: data.isSuspected(row) }),
  rest: async (rows, tell) => {
    for (const image of await describe(rows).catch(() => [])) tell(image.row, inWords(image));
  },
});

// The view is the address: what is looked at can be kept and sent.
function address() {
  const words = { view: view.kind };
  if (view.kind === "category") words.id = view.id;
  if (view.kind === "similar") words.row = view.row;
  if (view.kind === "lasso") words.lasso = view.lasso;
  if (view.kind === "map" && view.focus >= 0) words.id = view.focus;
  if (view.order !== "least") words.order = view.order;
  if (view.status !== "") words.status = store.run.statuses[view.status];
  if (view.low > 0) words.low = view.low;
  if (view.high < 1) words.high = view.high;
  if (view.path) words.path = view.path;
  return `#${new URLSearchParams(words)}`;
}

function fromAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  const share = (name, otherwise) => Math.min(1, Math.max(0, Number(words.get(name) ?? otherwise) || 0));
  const status = store.run.statuses.indexOf(words.get("status") ?? "-");
  const filters = { order: words.get("order") === "most" ? "most" : "least", path: words.get("path") ?? "", status: status < 0 ? "" : status };
  Object.assign(filters, { low: share("low", 0), high: words.has("high") ? share("high", 1) : 1 });
  const show = (change) => go({ ...filters, ...change }, true);
  const kind = words.get("view");
  const id = Number(words.get("id") ?? -1);
  if (kind === "category" && data.living().some((category) => category.id === id)) return show({ kind, id });
  const row = Number(words.get("row") ?? -1);
  if (kind === "similar" && Number.isInteger(row) && row >= 0 && row < store.n) return verbs.similar(row, show);
  const lasso = store.run.has.embeddings && kind === "lasso" ? words.get("lasso") : null;
  if (lasso) return show({ kind, lasso, rows: rowsInside(lasso) });
  if (["all", "unsure", "none", "labels", ...PANELS].includes(kind)) return show({ kind, focus: kind === "map" ? id : -1 });
  const first = nextOpen(-1) ?? data.living()[0]?.id;
  return show(first === undefined ? { kind: "all" } : { kind: "category", id: first });
}

// Show something else. Until all of it is there, rows that were asked for too, the view is what it was.
let turn = 0;
async function go(change, isFromAddress = false) {
  const mine = ++turn, path = change.path ?? view.path;
  const asked = path ? getJson("/api/paths", { text: path }).catch(() => []) : null;
  const [found, rows = null] = await awaited(Promise.all([asked, change.rows]));
  if (mine !== turn) return;
  Object.assign(view, { id: -1, row: -1, lasso: "", focus: -1 }, change, { found, rows });
  screen.changed();
  if (!isFromAddress || location.hash !== address()) history[isFromAddress ? "replaceState" : "pushState"](null, "", address());
  showMenu(false);
  if (markCurrent(view) || !document.body.dataset.ready) sideSoon();
  else drawSide(view, visit);
  draw();
}

// The same, but for something.
const refine = (change) => go({ ...view, ...change });

// A click that shows something else comes after the presses before it; keys go to the images then.
const visit = (event, change) => press(event, async () => {
  await go(change);
  if (event.detail) $("grid").focus({ preventScroll: true });
});

function showMenu(isShown) {
  document.body.classList.toggle("menu", isShown);
  $("menu").setAttribute("aria-expanded", isShown);
}

function draw({ isSame = false } = {}) {
  drawHead();
  const isPanel = PANELS.includes(view.kind);
  $("grid").hidden = $("filters").hidden = isPanel;
  $("panel").hidden = !isPanel;
  if (isPanel) {
    grid.show(new Uint32Array(0));
    if (view.kind === "merges") drawMerges((event, action, base) => press(event, () => does(action, "", base)));
    else drawMap(store.categories.has(view.focus) ? view.focus : null, (lasso, rows) => visit({ timeStamp: performance.now(), detail: 1 }, { kind: "lasso", lasso, rows }));
    return;
  }
  const isAll = view.kind === "all" && view.status === "" && !view.found; // no action adds to it or takes from it
  let rows = isSame && isAll ? grid.rows : data.rowsOf(view);
  if (view.found && (view.kind !== "all")) {
    const found = new Set(view.found);
    rows = data.rowsOf({ ...view, found: null }).filter((row) => found.has(row));
  }
  grid.canBeSharp = store.run.has.originals;
  grid.show(rows, { isSame });
  $("nothing").hidden = rows.length > 0;
  $("grid").setAttribute("aria-label", `Images of ${view.kind === "category" ? data.nameOf(view.id) : TITLES[view.kind]}`);
  let decided = 0;
  for (const row of rows) if (store.status[row] !== data.PREDICTED) decided++;
  const reachable = Math.min(grid.reachable, view.found ? MOST_FOUND : Infinity);
  const cut = rows.length >= reachable ? `, the first ${number(reachable)} shown: filter to see others` : "";
  $("count").textContent = `${images(rows.length)}, ${number(decided)} decided${cut}`;
  $("order").textContent = view.order === "least" ? "Least typical first" : "Most typical first";
  $("order").disabled = ["unsure", "labels", "similar", "lasso"].includes(view.kind);
  $("status").value = view.status === "" ? "" : String(view.status);
  for (const name of ["low", "high", "path"]) if (document.activeElement !== $(name)) $(name).value = view[name];
}

const TITLES = { all: "All images", unsure: "Unsure", none: "Without category", labels: "Suspected labels", merges: "Suggested merges", map: "Map", similar: "Similar images", lasso: "From the map" };
const ABOUT = {
  unsure: "Flagged by somebody, or more likely wrong than right; the least confident first.",
  none: "Rejected images and those that came without a category: move them (m), or find similar ones (l).",
  labels: "Images whose given label is not the category they are in, the surest first. Confirm (c) says the label is wrong.",
  similar: "The most alike first, the image itself at the front.",
};

const factsOf = (category) =>
  `${images(data.sizeOf(category.id))}, ${number(data.openOf(category.id))} undecided, confidence ${data.sureOf(category.id).toFixed(2)}`;

// Drawn anew only where another name or category stands there: an action mostly changes numbers alone.
let headOf = "";
function drawHead() {
  const category = view.kind === "category" ? store.categories.get(view.id) : null;
  const near = category?.novel && category.nearest !== undefined ? store.categories.get(data.today(category.nearest)) : null;
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
    if (near && near.id !== category.id) {
      $("nearest").hidden = false;
      $("nearest").replaceChildren(make("span", {}, "Is it really new? Nearest known: ", make("bdi", { textContent: near.name }), ` (${category.similarity?.toFixed(2) ?? "–"})`), strip(data.typicalOf(near.id, 8)));
    }
  }
  drawVerbs(category);
}

const verb = (words, key, does, settings) => button(words, key, (event) => press(event, does, { ...SEEN, ...needs(key) }), settings);

function drawVerbs(category) {
  const list = [];
  if (!store.run.read_only && !PANELS.includes(view.kind)) list.push(verb(category ? "Confirm all " : "Confirm ", "c", verbs.confirm, { className: "main" }));
  if (!store.run.read_only && category) {
    list.push(verb("Rename ", "r", verbs.rename), verb("Merge ", "j", verbs.merge), verb("Split ", "s", verbs.split));
    if (store.run.has.embeddings) list.push(verb("Grow ", "g", verbs.grow));
  }
  if (category && store.run.has.embeddings) list.push(button("On the map", "", (event) => visit(event, { kind: "map", focus: category.id })));
  $("verbs").replaceChildren(...list);
}

function drawSelected(n) {
  const bar = $("selected");
  const isOther = bar.hidden === Boolean(n);
  bar.hidden = !n;
  if (!n) return isOther && grid.cover(0);
  const list = [make("strong", { textContent: `${number(n)} selected` })];
  if (!store.run.read_only) {
    list.push(verb("Confirm ", "c", verbs.confirm), verb("Reject ", "x", verbs.reject), verb("Flag ", "f", verbs.flag), verb("Move ", "m", verbs.move), verb("New ", "n", verbs.create, { title: "A new category of them" }));
  }
  list.push(verb("None ", "Esc", verbs.none, { title: "Select none" }));
  bar.replaceChildren(...list);
  if (isOther) grid.cover($("grid").getBoundingClientRect().bottom - bar.getBoundingClientRect().top);
}

function drawTop() {
  const share = store.n ? (100 * (store.n - store.counts[data.PREDICTED])) / store.n : 0;
  $("bar").setAttribute("aria-valuenow", share.toFixed(0));
  $("bar").firstChild.style.width = `${share}%`;
  $("done-words").textContent = `${number(store.n - store.counts[data.PREDICTED])} of ${images(store.n)} decided`;
  $("undo").disabled = !store.undo || store.run.read_only;
  $("redo").disabled = !store.redo || store.run.read_only;
  $("undo").title = store.undo && `Undo: ${store.undo}`;
  $("redo").title = store.redo && `Redo: ${store.redo}`;
  document.body.dataset.seq = store.seq;
}

let focusTimer = 0;
function focusOn(row) {
  $("details").dataset.wanted = row;
  clearTimeout(focusTimer);
  focusTimer = setTimeout(() => drawDetails(row, verbs, press).catch(() => {}), 60);
}

const { does, verbs } = makeVerbs({ grid, view, go, refine });

const KEYS = {
  c: verbs.confirm, x: verbs.reject, f: verbs.flag, m: verbs.move, n: verbs.create, r: verbs.rename, s: verbs.split,
  j: verbs.merge, g: verbs.grow, l: () => verbs.similar(), 2: () => verbs.second(), b: () => verbs.either(), u: verbs.undo, U: verbs.redo,
  a: verbs.all, o: verbs.order, "]": () => verbs.step(1), "[": () => verbs.step(-1),
  Escape() {
    showMenu(false);
    verbs.none();
  },
  " "() {
    if (grid.focused < 0) return;
    grid.toggle(grid.focused);
    grid.reveal(grid.focus);
  },
  Enter: () => grid.focused >= 0 && verbs.open(grid.focused),
};
// What needs neither the server nor its turn.
const AT_ONCE = {
  "?": showKeys,
  "/"() {
    showMenu(true);
    $("find").focus();
    $("find").select();
  },
};
const MOVES = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "PageUp", "PageDown"];

function pressKey(event) {
  const target = event.target;
  if (event.repeat && event.key === "Enter") event.preventDefault(); // it would press a button again and again
  if ($("dialog").open || event.altKey) return;
  if (target.matches("input, select, textarea")) {
    if (event.key === "Escape") showMenu(false);
    if (event.key === "Escape") $("grid").focus();
    return;
  }
  const isOnControl = target.matches("button, a, canvas");
  const command = event.ctrlKey || event.metaKey ? { z: event.shiftKey ? verbs.redo : verbs.undo, Z: verbs.redo, y: verbs.redo, a: verbs.all }[event.key] : null;
  if (event.ctrlKey || event.metaKey) {
    if (!command) return;
    event.preventDefault();
    return event.repeat || press(event, command, event.key === "a" ? SEEN : {});
  }
  if (isOnControl && ["Enter", " ", ...MOVES].includes(event.key)) return;
  const { key, shiftKey } = event;
  const does = MOVES.includes(key) ? () => grid.move(key, { extend: shiftKey }) : Object.hasOwn(KEYS, key) ? KEYS[key] : Object.hasOwn(AT_ONCE, key) ? AT_ONCE[key] : null;
  if (!does) return;
  event.preventDefault();
  if (event.repeat && !REPEATED.includes(key)) return;
  if (Object.hasOwn(AT_ONCE, key)) return does();
  press(event, does, { ...needs(key), wasSeen: (event) => AHEAD.includes(key) || (screen.wasSeen(event) && (!SECOND.includes(key) || wasDetailed(event, grid.focused))) });
}

// What a key that is held down does again and again. A decision needs a press of its own.
const REPEATED = [...MOVES, "[", "]"];

// Keys that decide on nothing that would have to be seen first.
const AHEAD = [...REPEATED, "u", "U", "o", "Escape"];

// Keys that decide on the second choice, which is shown beside the image in focus.
const SECOND = ["2", "b"];

// Keys that ask for a name, and those that show what the server has to be asked for.
const ASKING = ["m", "n", "r", "j"], WAITING = ["s", "g", "Enter"];
const needs = (key) => ({ asks: ASKING.includes(key), waits: WAITING.includes(key) });

function wire() {
  raise();
  document.addEventListener("keydown", pressKey);
  window.addEventListener("popstate", (event) => press(event, () => fromAddress()));
  $("undo").onclick = (event) => press(event, verbs.undo);
  $("redo").onclick = (event) => press(event, verbs.redo);
  $("help").onclick = showKeys;
  $("history").onclick = showHistory;
  $("order").onclick = (event) => press(event, verbs.order);
  $("menu").onclick = () => showMenu(!document.body.classList.contains("menu"));
  $("main").addEventListener("pointerdown", () => showMenu(false));
  $("find").oninput = () => drawCategories(view, visit);
  $("sort").onchange = () => drawCategories(view, visit);
  $("status").append(...store.run.statuses.map((word, at) => make("option", { value: String(at), textContent: word })));
  const filter = (event, change) => press(event, () => refine(change));
  $("status").onchange = (event) => filter(event, { status: $("status").value === "" ? "" : Number($("status").value) });
  for (const name of ["low", "high"]) $(name).onchange = (event) => filter(event, { [name]: Math.min(1, Math.max(0, Number($(name).value) || 0)) });
  $("path").onchange = (event) => filter(event, { path: $("path").value.trim() });
  $("size").oninput = () => resized(Number($("size").value));
  const size = Number(localStorage.getItem("shoal-size")) || Math.round(Math.min(176, Math.max(96, innerWidth / 12)) / 4) * 4;
  $("size").value = size;
  resized(size);
  $("who").onclick = async () => {
    const name = await askName(() => "Who is reviewing?", { value: me(), verb: "That is me", hint: () => "Written beside everything you do." });
    if (!name) return;
    localStorage.setItem("shoal-who", name.slice(0, 80));
    introduce({ by: name.slice(0, 80) });
    $("who").textContent = name.slice(0, 80);
  };
  $("who").textContent = me();
  $("who").hidden = store.run.read_only;
  const themed = (theme) => {
    document.documentElement.dataset.theme = theme;
    $("theme").textContent = theme === "dark" ? "Light" : "Dark";
  };
  themed(localStorage.getItem("shoal-theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
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

function resized(size) {
  localStorage.setItem("shoal-size", size);
  grid.resize(size);
}

async function start() {
  const began = performance.now();
  await data.load(localStorage.getItem("shoal-who") ?? "");
  $("title").textContent = store.run.title;
  wire();
  data.onChange(({ others }) => {
    if (view.kind === "category" && store.categories.get(view.id)?.into != null) view.id = store.categories.get(view.id).into;
    if (view.kind === "category" && !store.categories.has(view.id)) return go({ kind: "all" });
    const before = grid.rows, focused = grid.focused;
    if (view.kind !== "map") draw({ isSame: true });
    // What others did to this view has to be seen before a press counts for it.
    if (others.length && (grid.focused !== focused || !isEqual(before, grid.rows))) screen.changed();
    drawTop();
    sideSoon();
    const last = others.at(-1);
    if (last) say(`${last.by}${last.by === me() ? ", elsewhere" : ""}: ${last.words}`, false, { isNews: true });
  });
  await fromAddress();
  $("grid").focus({ preventScroll: true });
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done))); // images first, the long list after them
  clearTimeout(sideTimer);
  drawSide(view, visit);
  sideSoon();
  document.body.dataset.ready = (performance.now() - began).toFixed(0);
  tellMisfits();
  data.listen((problem) => {
    $("banner").hidden = !problem;
    if (problem) $("banner").textContent = problem;
  });
}

start().catch((error) => {
  $("banner").hidden = false;
  $("banner").textContent = error.message;
});

window.shoal = { store, view, grid }; // for whoever looks into the page with developer tools
