// The tree of categories, shown instead of the grid: what is merged above the current categories, the root first.
import { getJson } from "/static/api.js";
import { $, arrange, bdi, kindOf, make, number, images, thumb, visuallyHidden } from "/static/dom.js";
import { awaited } from "/static/presses.js";
import * as data from "/static/store.js";

const ABOUT = "Similar categories are next to each other. The number of a branch is the mean cosine distance between its "
  + "two parts. Select a branch to name, merge or show the categories below it, or to cut the tree that low, or a category "
  + "to split it; arrows move and fold, + and − show more and fewer branches.";
const FEW = "There is no tree of fewer than two categories with images.";
const MOST_OPEN = 60, PICTURES = 4, LINES = 40;

let nodes = []; // leaves first, the root last
let nOpen = MOST_OPEN; // branches nearest to the root that are open, unless somebody folded or opened them:
const folded = new Map(); // whether, by key
let chosen = ""; // the key of the selected node
let asked = 0;
let does = {}; // `choose` when another node is selected, `open` when its images are to be shown

// A node, its categories, and where it stands: 0 at the root, 1 at a leaf.
function makeNodes({ categories, merges }) {
  nodes = categories.map((id) => ({ id, ids: [id], height: 0, children: [] }));
  for (const [first, second, height] of merges) {
    const children = [nodes[first], nodes[second]];
    nodes.push({ ids: children.flatMap(({ ids }) => ids), height, children });
  }
  const top = nodes.at(-1)?.height || 1;
  nodes.forEach((node, at) => {
    // Nodes with the same lowest category have different sizes.
    node.key = `${node.ids.reduce((a, b) => Math.min(a, b))} ${node.ids.length}`;
    node.rank = nodes.length - at;
    node.place = 1 - node.height / top;
    for (const child of node.children) child.parent = node;
  });
}

const isOpen = (node) => node.children.length > 0 && (folded.has(node.key) ? !folded.get(node.key) : node.rank <= nOpen);
const nodeOf = (key) => nodes.find((node) => node.key === key);

// The categories of the selected node.
export const chosenCategories = () => (nodeOf(chosen)?.ids ?? []).filter(data.isLiving);

// The height of the selected node, and the branches that are as low as it and fit, the largest possible ones.
export function cutHere(fits) {
  const { height } = nodeOf(chosen), branches = [], stack = nodes.slice(-1);
  while (stack.length) {
    const node = stack.pop(), ids = node.ids.filter(data.isLiving);
    if (node.height <= height && ids.length > 1 && fits(ids)) branches.push(ids);
    else stack.push(...node.children);
  }
  return { height, branches };
}

function visible() {
  const found = [], stack = nodes.slice(-1);
  while (stack.length) {
    const node = stack.pop();
    found.push(node);
    if (isOpen(node)) stack.push(...node.children.toReversed());
  }
  return found;
}

export async function drawTree(actions, { isSame = false } = {}) {
  does = actions;
  const request = ++asked, place = $("panel");
  if (!isSame || !place.querySelector(".tree")) {
    place.replaceChildren(make("p", { className: "muted waiting", textContent: "Computing the tree …" }));
  }
  try {
    const found = await awaited(getJson("/api/tree"));
    if (request !== asked || !place.querySelector(".tree, .waiting")) return; // something else is shown there by now
    makeNodes(found);
    if (!nodeOf(chosen)) chosen = nodes.at(-1)?.key ?? "";
    show();
    does.choose();
  } catch (error) {
    if (request === asked) place.replaceChildren(make("p", { className: "muted waiting", textContent: error.message }));
  }
}

const items = new Map(); // by key
function show() {
  const place = $("panel"), shown = visible();
  let list = place.querySelector(".tree");
  const focuses = [document.body, place].includes(document.activeElement) || list?.contains(document.activeElement);
  if (!list) {
    list = make("div", { className: "tree", role: "tree", on: { keydown: pressed, click: clicked, dblclick: opened } });
    list.ariaLabel = "Tree of categories";
    const textContent = nodes.length > 1 ? ABOUT : FEW;
    place.replaceChildren(make("p", { className: "muted", textContent }), list);
  }
  if (nodes.length < 2) return list.replaceChildren();
  // What is folded away cannot be selected: its branch is.
  let node = nodeOf(chosen);
  while (!shown.includes(node)) node = node.parent;
  data.typicalOfMany(data.living().map(({ id }) => id), PICTURES);
  for (const key of items.keys()) if (!nodeOf(key)) items.delete(key);
  arrange(list, shown.map(itemOf));
  choose(node, { focuses });
}

const levelOf = ({ parent }) => (parent ? 1 + levelOf(parent) : 1);

function itemOf(node) {
  const { id, ids, key, height, place } = node, isLeaf = id !== undefined;
  const largest = isLeaf ? ids : ids.toSorted((a, b) => data.sizeOf(b) - data.sizeOf(a)).slice(0, PICTURES);
  const rows = isLeaf || !isOpen(node) ? largest.flatMap((one) => data.typicalOf(one, 1)) : [];
  const category = data.store.categories.get(id), size = images(ids.reduce((n, one) => n + data.sizeOf(one), 0));
  const lines = [];
  for (let one = isLeaf ? node.parent : node; one && lines.length < LINES; one = one.parent) lines.push(one.place);
  const content = JSON.stringify([category, isOpen(node), rows, size, lines, place]);
  if (items.get(key)?.content === content) return items.get(key).element;
  const words = isLeaf
    ? [make("span", { className: `dot ${kindOf(category)}` }, visuallyHidden(kindOf(category))), bdi(category.name)]
    : [make("span", { textContent: `${number(ids.length)} categories` }), make("span", { className: "muted", textContent: height.toFixed(2) })];
  const fold = isLeaf ? null : make("span", { className: "fold", aria: { hidden: "true" }, textContent: isOpen(node) ? "▾" : "▸" });
  const pictures = make("span", { className: "pictures", aria: { hidden: "true" } }, ...rows.map((row) => thumb(row)));
  const element = make("div", { role: "treeitem", tabIndex: -1, data: { id: key } },
    fold, pictures, ...words, make("span", { className: "muted size", textContent: size }));
  element.setAttribute("aria-level", levelOf(node));
  if (!isLeaf) element.setAttribute("aria-expanded", isOpen(node));
  element.style.setProperty("--at", place.toFixed(4));
  const line = (at) => `linear-gradient(var(--line), var(--line)) calc(${at.toFixed(4)} * var(--span) + .4rem) 0 / 2px 100% no-repeat`;
  element.style.background = lines.map(line).join(", ");
  items.set(key, { content, element });
  return element;
}

// Select a node, and mark all that is below it.
function choose(node, { focuses = true } = {}) {
  chosen = node.key;
  const below = new Set(node.ids);
  for (const item of $("panel").querySelectorAll("[role=treeitem]")) {
    const one = nodeOf(item.dataset.id), isChosen = one === node;
    item.setAttribute("aria-selected", isChosen);
    item.tabIndex = isChosen ? 0 : -1;
    item.classList.toggle("below", one.ids.length < node.ids.length && below.has(one.ids[0]));
    if (isChosen && focuses) item.focus({ preventScroll: true });
    if (isChosen && focuses) item.scrollIntoView({ block: "nearest" });
  }
  does.choose();
}

function fold(node, isFolded) {
  if (!node.children.length) return;
  folded.set(node.key, isFolded);
  show();
}

// Twice or half as many branches.
function zoom(by) {
  folded.clear();
  nOpen = Math.max(1, Math.min(Math.round(nOpen * by), nodes.length));
  show();
}

function pressed(event) {
  const { key, ctrlKey, metaKey, altKey } = event, node = nodeOf(chosen), shown = visible(), at = shown.indexOf(node);
  const step = (to) => choose(shown[Math.max(0, Math.min(to, shown.length - 1))]);
  const keys = {
    ArrowDown: () => step(at + 1), ArrowUp: () => step(at - 1), Home: () => step(0), End: () => step(shown.length - 1),
    PageDown: () => step(at + 10), PageUp: () => step(at - 10),
    ArrowRight: () => (isOpen(node) ? step(at + 1) : fold(node, false)),
    ArrowLeft: () => (isOpen(node) ? fold(node, true) : node.parent && choose(node.parent)),
    " ": () => fold(node, isOpen(node)), Enter: () => !event.repeat && does.open(event),
    "+": () => zoom(2), "=": () => zoom(2), "-": () => zoom(0.5),
  };
  if (ctrlKey || metaKey || altKey || !node || !Object.hasOwn(keys, key)) return;
  event.preventDefault();
  keys[key]();
}

const under = ({ target }) => nodeOf(target.closest("[role=treeitem]")?.dataset.id);

function clicked(event) {
  const node = under(event);
  if (!node) return;
  choose(node);
  if (event.target.closest(".fold")) fold(node, isOpen(node));
}

const opened = (event) => under(event) && !event.target.closest(".fold") && does.open(event);
