// The main module: the current view, its header, and the controls.
import { addressOf, CLEAR, countFilters, fromAddress } from "/static/address.js";
import { me } from "/static/api.js";
import { awaitDetails, describe, drawDetails, inWords } from "/static/details.js";
import { askName, showHistory, showKeys } from "/static/dialogs.js";
import {
  $, bdi, button, clamped, focusShown, images, isMore, isTyping, kindOf, make, number, raise, refill, notify, showMenu, showMore,
} from "/static/dom.js";
import { Grid } from "/static/grid.js";
import { makeKeys } from "/static/keys.js";
import { drawMap } from "/static/map.js";
import { drawMerges } from "/static/panel.js";
import { areKeysOn, awaited, isRefused, makePresses, makeScreen, REACTION_MS, turnKeys } from "/static/presses.js";
import { categoryUnder, drawCategories, drawSide, markCurrent, showDrag, sorted } from "/static/side.js";
import * as data from "/static/store.js";
import { strip } from "/static/strips.js";
import { chosenCategories, drawTree } from "/static/tree.js";
import { makeVerbs } from "/static/verbs.js";

const { store } = data;
const view = { kind: "all", id: -1, ids: [], order: "least", status: "", low: 0, high: 1, path: "", rows: null, found: null };
const MARKS = ["", "✓", "✕", "→", "?"];
const OWN_ORDER = ["uncertain", "labels", "similar", "duplicates", "lasso"]; // lists that can have no other
const LISTS = ["all", "uncertain", "none", "labels", "duplicates"], PANELS = ["merges", "map", "tree"];

const MOST_NAMED = 6; // categories above a branch
const TYPING_MS = 150; // after which what was typed is searched for
const LOW = 880; // pixels of a window in which the list of categories is compact unless somebody chose otherwise

const press = makePresses(), screen = makeScreen();

const grid = new Grid($("grid"), $("space"), $("box"), {
  focus: (row) => focusOn(row),
  select: (n) => drawSelected(n),
  click: (event, does) => press(event, does),
  box: () => screen.changed(), // it selects at once: a key that waits its turn was not about that
  drag: (event) => showDrag(event, grid.selected.size),
  drop(event) {
    const id = categoryUnder(event);
    if (id !== null && !isRefused("m")) press(event, () => verbs.put(grid.chosen, { id }), needs("m", { asks: false }));
  },
  open: (event, row) => press(event, (turn) => verbs.open(turn, row), needs("Enter")),
  status(row) {
    const status = store.status[row];
    const lines = view.kind === "category" || view.kind === "none" ? [] : captionOf(row);
    if (isByDate()) lines.unshift(data.dateOf(row).slice(0, "YYYY-MM-DD HH:MM".length));
    return { word: store.run.statuses[status], mark: MARKS[status], isOff: data.isSuspicious(row), lines };
  },
  rest: async (rows, describeTile) => {
    for (const image of await describe(rows).catch(() => [])) describeTile(image.row, inWords(image));
  },
});

// The caption of an image in a list across categories: its similarity to the one they were found for, its category, and
// the one that its neighbors suggest.
function captionOf(row) {
  const name = data.nameOf(store.category[row]), similarity = view.similarity?.get(row);
  if (similarity !== undefined) return [`${similarity.toFixed(2)} ${name}`];
  if (view.kind !== "labels" || !data.isSuspicious(row)) return [name];
  const expected = data.expectedOf(row);
  return [name, `or ${expected === name ? data.nameOf(data.givenOf(row)) : expected}?`];
}

const isByDate = () => data.isByDate(view.order) && !OWN_ORDER.includes(view.kind);

// Show another view. The old one stays until everything is loaded, including requested rows.
let latest = 0;
async function go(change, { replacesAddress = false, from = document.activeElement } = {}) {
  const request = ++latest, path = change.path ?? view.path;
  const asked = path ? data.withPath(path) : null;
  const searched = change.kind === "duplicates" && !change.rows ? data.withSimilarity("/api/near-duplicates") : change;
  const dates = data.isByDate(change.order ?? view.order) && data.withDates();
  const answers = [asked, searched.rows, searched.similarity, dates];
  const [found, rows = null, similarity = null] = await awaited(Promise.all(answers));
  if (request !== latest) return;
  Object.assign(view, { id: -1, row: -1, lasso: "", focus: -1 }, change, { found, rows, similarity });
  screen.changed();
  const address = addressOf(view);
  if (!replacesAddress) history.pushState(null, "", address);
  else if (location.hash !== address) history.replaceState(null, "", address);
  if (!isTyping(from)) showMenu(false);
  if (markCurrent(view) || !document.body.dataset.ready) sideSoon();
  else drawSide(view, visit);
  draw();
}

const showAddress = () => {
  const kinds = [...LISTS, ...PANELS];
  return fromAddress((change) => go(change, { replacesAddress: true }), { similar: verbs.similar, kinds });
};

// The same view with some changes.
const refine = (change, options) => go({ ...view, ...change }, options);

// A click or Enter that changes the view waits for the key presses before it; then the images get the focus.
const visit = (event, change) => {
  const from = document.activeElement;
  return press(event, async () => {
    await go(change, { from });
    if (!isTyping(from)) focusShown();
  });
};

// Decisions on a card of two categories, and selections on the map.
const decide = (event, action, words) => press(event, () => does(action, () => words));
const showLasso = (lasso, rows) => visit({ timeStamp: performance.now() }, { kind: "lasso", lasso, rows });

// Show the category selected in the tree, or the images of all categories below the selected branch.
function openBranch(event) {
  const ids = chosenCategories();
  if (ids.length) return visit(event, ids.length > 1 ? { kind: "branch", ids } : { kind: "category", id: ids[0] });
}

function draw({ isSame = false, isOwn = false } = {}) {
  drawHead();
  const isPanel = PANELS.includes(view.kind), isLasso = view.kind === "lasso";
  const focused = document.activeElement;
  $("grid").hidden = $("filters").hidden = isPanel;
  $("panel").hidden = !isPanel && !isLasso;
  $("main").classList.toggle("beside", isLasso); // the map stays beside the images of a lasso
  if (focused.closest("#grid[hidden], #panel[hidden]")) focusShown();
  if (isPanel || isLasso) $("panel").ariaLabel = isLasso ? TITLES.map : TITLES[view.kind];
  if (view.kind === "map" || isLasso) {
    const chosen = !isSame && store.categories.has(view.focus) ? view.focus : null;
    drawMap({ chosen, line: view.lasso, showRows: showLasso });
  }
  if (isPanel) {
    $("nothing").hidden = true;
    grid.show(new Uint32Array(0));
    if (view.kind === "merges") drawMerges(decide, { isSame, isOwn });
    if (view.kind === "tree") drawTree({ choose: drawHead, open: openBranch }, { isSame });
    return;
  }
  const isAll = view.kind === "all" && view.status === "" && !view.found; // no action changes which images are listed
  const rows = isSame && isAll ? grid.rows : data.rowsOf(view);
  grid.canBeSharp = store.run.has.originals;
  grid.show(rows, { isSame });
  drawNothing(rows.length);
  const what = view.kind === "category" ? data.nameOf(view.id) : TITLES[view.kind];
  $("grid").setAttribute("aria-label", `Images of ${what}`);
  let decided = store.n - store.counts[data.PREDICTED];
  if (rows.length < store.n) {
    decided = 0;
    for (const row of rows) if (store.status[row] !== data.PREDICTED) decided++;
  }
  const { reachable } = grid;
  const cut = rows.length >= reachable ? `, showing the first ${number(reachable)}; use the filters to see others` : "";
  const undated = isByDate() ? rows.reduce((n, row) => n + Number(!data.dateOf(row)), 0) : 0;
  const without = undated ? `, ${number(undated)} without a date` : "";
  $("count").textContent = `${images(rows.length)}, ${number(decided)} decided${without}${cut}`;
  $("order").value = view.order;
  $("order").disabled = $("order").hidden = OWN_ORDER.includes(view.kind);
  if (view.kind === "labels") $("facts").textContent = aboutLabels(rows);
  if (view.kind === "branch") $("facts").textContent = inBranch(view.ids);
  $("status").value = view.status === "" ? "" : String(view.status);
  for (const name of ["low", "high", "path"]) if (document.activeElement !== $(name)) $(name).value = view[name];
  const n = countFilters(view);
  $("toggle-filters").textContent = n ? `Filters (${n})` : "Filters";
  if (n) showFilters(true); // never hide images without a trace
}

function showFilters(isShown) {
  $("filter-fields").hidden = !isShown;
  $("toggle-filters").setAttribute("aria-expanded", isShown);
}

// Explain why no image is shown: filters, perhaps set in the previous view, may hide them.
function drawNothing(n) {
  const hidden = n || !countFilters(view) ? 0 : data.rowsOf({ ...view, ...CLEAR, found: null }).length;
  $("nothing").hidden = n > 0;
  $("nothing").firstChild.textContent = hidden ? `The filters hide ${images(hidden)} here.` : "There are no images here.";
  $("clear").hidden = !hidden;
}

const TITLES = {
  all: "All images", uncertain: "Uncertain", none: "Without category", labels: "Suspicious labels",
  merges: "Suggested merges", map: "Map", tree: "Tree", branch: "Branch of the tree", similar: "Similar images",
  duplicates: "Near-duplicates", lasso: "From the map",
};
const ABOUT = {
  uncertain: "Images that are flagged or have a confidence below 0.5, least confident first.",
  none: "Images that were rejected or have no category: move them (m), or find similar ones (l).",
  duplicates: "Images next to others of their category that look almost the same; the number is the cosine similarity.",
  similar: "Most similar first, after the image itself; the number is the cosine similarity.",
};

// The text above suspicious labels. Most runs put labeled images into the categories of their labels.
function aboutLabels(rows) {
  const areKept = rows.every((row) => store.category[row] === data.givenOf(row));
  const keys = areKept ? "c keeps the label, 2 takes the other" : "c keeps the first name, 2 takes the second choice";
  return `The neighbors suggest a category other than the label. Most certain first: ${keys}, x rejects the image.`;
}

// The text above a branch: the names of some of its categories.
function inBranch(ids) {
  const more = ids.length > MOST_NAMED ? ` and ${number(ids.length - MOST_NAMED)} more` : "";
  return ids.slice(0, MOST_NAMED).map((id) => clamped(data.nameOf(id))).join(", ") + more;
}

function factsOf({ id, note }) {
  const size = images(data.sizeOf(id)), open = number(data.openOf(id));
  const noted = note ? ` · ${clamped(note)}` : "";
  return `${size}, ${open} undecided, confidence ${data.confidenceOfCategory(id).toFixed(2)}${noted}`;
}

// Redrawn only if the name or category changed: most actions change only numbers.
let headOf = "";
function drawHead() {
  const category = view.kind === "category" ? store.categories.get(view.id) : null;
  const isNew = category?.novel && category.nearest !== undefined;
  const near = isNew ? store.categories.get(data.current(category.nearest)) : null;
  const branch = view.kind === "tree" ? chosenCategories() : [];
  const head = JSON.stringify([view.kind, category, near, branch]);
  if (category) $("facts").textContent = factsOf(category);
  $("facts").title = category?.note ?? "";
  drawTop();
  if (head === headOf) return;
  headOf = head;
  const name = category ? category.name : TITLES[view.kind];
  $("name").textContent = $("name").title = name;
  document.title = `${clamped(name)} · ${store.run.title} · Shoal review`;
  $("kind").hidden = !category;
  $("nearest").hidden = true;
  $("facts").textContent = ABOUT[view.kind] ?? inBranch(branch);
  if (category) {
    $("kind").textContent = kindOf(category);
    $("kind").className = `kind ${kindOf(category)}`;
    $("facts").textContent = factsOf(category);
    if (category.mixed) {
      $("nearest").hidden = false;
      const [stay, leave] = category.mixed.sides.map(([labeled, unlabeled]) =>
        [labeled && `${number(labeled)} labeled`, `${number(unlabeled)} unlabeled`].filter(Boolean).join(", "));
      const words = `May be a mixture of two categories, of ${stay} and of ${leave}. Split (s) shows both.`;
      const shown = strip(category.mixed.rows, "Images that may be another category");
      $("nearest").replaceChildren(make("span", { textContent: words }), shown);
    } else if (near && near.id !== category.id) {
      $("nearest").hidden = false;
      const similarity = ` (${category.similarity?.toFixed(2) ?? "–"})`;
      const asked = make("span", {}, "Novel? Nearest known category: ", bdi(near.name), similarity);
      $("nearest").replaceChildren(asked, strip(data.typicalOf(near.id, 8), `Most typical images of ${near.name}`));
    }
  }
  drawVerbs(category, branch);
}

const verb = (words, key, does, settings) =>
  button(words, key, (event) => press(event, does, needs(key)), settings);

// What the first button confirms: the selected images that are not confirmed yet; with none selected, the category or
// the image in focus.
function confirmWords() {
  if (!grid.selected.size) return view.kind === "category" ? "Confirm all " : "Confirm ";
  const n = verbs.toConfirm().length;
  return n ? `Confirm ${number(n)} ` : "Confirm ";
}

function drawVerbs(category, branch) {
  const list = [], isGrid = !PANELS.includes(view.kind), words = confirmWords();
  const [first, key, does] = view.kind === "none" ? ["Move ", "m", verbs.move] : [words, "c", verbs.confirm];
  if (!store.run.read_only && isGrid) list.push(verb(first, key, does, { className: "main" }));
  if (!store.run.read_only && category) {
    list.push(verb("Rename ", "r", verbs.rename), verb("Merge ", "j", verbs.merge), verb("Split ", "s", verbs.split));
    list.push(verb("Grow ", "g", verbs.grow), verb("Note ", "", verbs.noteCategory));
  }
  if (branch.length) list.push(button("Show images ", "Enter", openBranch));
  if (!store.run.read_only && branch.length) {
    list.push(verb("Rename ", "r", verbs.rename), verb("Merge ", "j", verbs.merge));
    if (branch.length > 1) list.push(verb("Cut here ", "k", verbs.cut));
    else list.push(verb("Split ", "s", verbs.split));
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
  $("live-region").textContent = n ? `${number(n)} selected` : ""; // for screen readers
  if (!n) return isOther && grid.cover(0);
  const list = [make("strong", { textContent: `${number(n)} selected` })];
  if (!store.run.read_only) {
    list.push(verb("Confirm ", "c", verbs.confirm), verb("Reject ", "x", verbs.reject), verb("Flag ", "f", verbs.flag));
    list.push(verb("Move ", "m", verbs.move), verb("New ", "n", verbs.create, { title: "Create a category from them" }));
    list.push(verb("Note ", "t", verbs.note));
  }
  if (n === 1) { // a narrow page has no other button for it
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
    event.preventDefault(); // the address of the page identifies the view
    focusShown();
  };
  window.addEventListener("popstate", (event) => {
    $("dialog").close(); // it is about the previous view
    press(event, showAddress);
  });
  $("undo").onclick = (event) => press(event, verbs.undo);
  $("redo").onclick = (event) => press(event, verbs.redo);
  $("help").onclick = showKeys;
  $("history").onclick = async () => {
    const entry = await showHistory();
    if (entry) await showEntry(entry).catch((error) => notify(error.message, true));
  };
  $("toggle-filters").onclick = () => showFilters($("filter-fields").hidden);
  const compacted = (isCompact) => {
    $("categories").classList.toggle("compact", isCompact);
    $("compact").setAttribute("aria-pressed", isCompact);
  };
  compacted((localStorage.getItem("shoal-compact") ?? String(innerHeight < LOW)) === "true");
  $("compact").onclick = () => {
    compacted($("compact").getAttribute("aria-pressed") === "false");
    localStorage.setItem("shoal-compact", $("compact").getAttribute("aria-pressed"));
  };
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
    if (!first) return;
    $("find").value = ""; // it was a way to get there: the next category need not match
    visit(event, { kind: "category", id: first.id });
  };
  $("sort").onchange = () => {
    drawCategories(view, visit);
    history.replaceState(null, "", addressOf(view));
  };
  $("status").append(...store.run.statuses.map((word, at) => make("option", { value: String(at), textContent: word })));
  const filter = (event, change, options) => press(event, async () => {
    await refine(change, options);
    $("live-region").textContent = $("count").textContent;
  });
  const status = () => ($("status").value === "" ? "" : Number($("status").value));
  const share = (name) => Math.min(1, Math.max(0, Number($(name).value) || 0));
  $("order").onchange = (event) => filter(event, { order: $("order").value });
  $("status").onchange = (event) => filter(event, { status: status() });
  for (const name of ["low", "high"]) $(name).onchange = (event) => filter(event, { [name]: share(name) });
  $("clear").onclick = (event) => filter(event, CLEAR);
  let typing = 0;
  $("path").oninput = (event) => {
    const path = $("path").value.trim();
    clearTimeout(typing);
    typing = setTimeout(() => filter(event, { path }, { replacesAddress: true }), TYPING_MS);
  };
  $("size").oninput = () => {
    localStorage.setItem("shoal-size", $("size").value);
    grid.resize(Number($("size").value));
  };
  const fit = Math.round(Math.min(240, Math.max(96, innerWidth / 12)) / 4) * 4;
  const size = Number(localStorage.getItem("shoal-size")) || fit;
  $("size").value = size;
  grid.resize(size);
  $("who").onclick = async () => {
    const name = (await askName(() => "Who is reviewing?", {
      value: me(), verb: "Continue", hint: () => "Recorded with each of your actions.",
    }))?.slice(0, 80);
    if (!name) return;
    localStorage.setItem("shoal-who", name);
    $("who").textContent = name;
    await data.rename(name).then(drawTop, (error) => notify(error.message, true));
  };
  $("who").textContent = me() || "Your name";
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
    draw({ isSame: true }); // the map has colors of its own
  };
}

// Show where the images or the category of a past action are now.
async function showEntry({ row, category }) {
  const id = row < 0 ? data.current(category) : store.category[row];
  await go(data.isLiving(id) ? { kind: "category", id, ...CLEAR } : { kind: "none", ...CLEAR });
  const place = grid.rows.indexOf(row);
  if (place >= 0) grid.go(place);
}

const isEqual = (some, others) => some.length === others.length && some.every((row, at) => row === others[at]);

// The list is long, so it is redrawn only after a moment without actions.
let sideTimer = 0;
function sideSoon() {
  clearTimeout(sideTimer);
  sideTimer = setTimeout(() => (data.isActing() ? sideSoon() : drawSide(view, visit)), 250);
}

async function start() {
  const began = performance.now();
  await data.load(localStorage.getItem("shoal-who") ?? "");
  $("title").textContent = store.run.title;
  $("read-only").hidden = !store.run.read_only;
  wire();
  data.onChange(({ others }) => {
    const into = store.categories.get(view.id)?.into ?? null;
    if (view.kind === "category" && into !== null) view.id = into;
    if (view.kind === "category" && !store.categories.has(view.id)) return go({ kind: "all" });
    const before = grid.rows, focused = grid.focused;
    draw({ isSame: true, isOwn: !others.length });
    // A key press counts only after the user has seen what others changed in this view.
    if (others.length && grid.focused !== focused) screen.changed(null, REACTION_MS);
    else if (others.length && !isEqual(before, grid.rows)) screen.changed();
    drawTop();
    sideSoon();
    const last = others.at(-1);
    if (last) notify(`${last.by}${last.by === me() ? ", elsewhere" : ""}: ${last.words}`, false, { isNews: true });
  });
  await showAddress();
  if (!isTyping(document.body)) focusShown();
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done))); // draw the images before the long list
  clearTimeout(sideTimer);
  drawSide(view, visit);
  sideSoon();
  document.body.dataset.ready = (performance.now() - began).toFixed(0);
  if (store.run.asks_who && !me()) $("who").click();
  data.listen((problem) => {
    $("banner").hidden = !problem;
    if (problem) $("banner").textContent = problem;
    else if ($("details").ariaBusy === "true") focusOn(grid.focused); // the request failed before
  });
}

start().catch((error) => {
  $("banner").hidden = false;
  $("banner").textContent = error.message;
});

window.shoal = { store, view, grid, screen }; // for developer tools
