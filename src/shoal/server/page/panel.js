// What takes the place of the grid: suggested merges with their evidence.
import { getJson } from "/static/api.js";
import { $, arrange, bdi, button, make, number } from "/static/dom.js";
import { sideOf } from "/static/dialogs.js";
import { awaited, isFirst, makeScreen } from "/static/presses.js";
import * as data from "/static/store.js";
import { pictures } from "/static/thumbs.js";

const ABOUT = "The closest pairs of categories, the closest first. Where two lie as close as the halves of one "
  + "category do (a separation below 3.5), look whether they are one: different things may lie as close.";
const NONE = "There is no pair to compare: that takes a novel category and another, of three images each.";
const ASIDE = "Somebody said of each of the closest pairs that they are not the same.";

let areShown = false; // pairs of which somebody said that they are not the same
let pairs = []; // as the server found them last
let asked = 0;
let cards = new Map(); // those on the screen, from the first one on, by their pair

const keyOf = ({ a, b }) => `${Math.min(a, b)} ${Math.max(a, b)}`;
const isPair = ({ a, b }) => data.isLiving(a) && data.isLiving(b);
const isOpen = (pair) => isPair(pair) && (areShown || !data.areApart(pair.a, pair.b));

// `decides` is given what somebody chose. With `isSame` it is shown already, and the server is asked for the rest. What
// was not done here (`isOwn`) moves no card: whoever aims at one would hit another.
export async function drawMerges(decides, { isSame = false, isOwn = false } = {}) {
  const place = $("panel"), mine = ++asked;
  if (isSame && place.querySelector(".merges")) arrangeCards(decides, { keepsPlaces: !isOwn });
  else if (!isSame || !place.querySelector(".waiting")) showWords("Comparing categories …", "waiting");
  try {
    const found = await awaited(getJson("/api/merges"));
    if (mine !== asked || !place.querySelector(".merges, .waiting")) return; // something else is shown there by now
    pairs = found;
    arrangeCards(decides, { keepsPlaces: true });
  } catch (error) {
    if (mine === asked) showWords(error.message, "waiting");
  }
}

function showWords(words, name) {
  cards.clear();
  $("panel").replaceChildren(make("p", { className: `muted ${name}`, textContent: words }));
}

// The pairs of the cards that are in sight, and of those above them.
function pairsSeen() {
  const { bottom } = $("panel").getBoundingClientRect();
  const isSeen = ({ element }) => element.getBoundingClientRect().top < bottom;
  return [...cards.values()].filter(isSeen).map(({ pair }) => pair);
}

// The pairs that are two categories still, each on its card, in the order of the server but for those that keep places.
function arrangeCards(decides, { keepsPlaces }) {
  const latest = new Map(pairs.map((pair) => [keyOf(pair), pair]));
  const kept = (keepsPlaces ? pairsSeen() : []).map((pair) => latest.get(keyOf(pair)) ?? pair);
  const known = new Set(kept.map(keyOf)), open = pairs.filter(isOpen);
  const left = [...kept, ...open.filter((pair) => !known.has(keyOf(pair)))];
  const n = pairs.filter(isPair).length - open.length;
  cards = new Map(left.map((pair, at) => [keyOf(pair), cardOf(pair, at, decides)]));
  const about = make("p", { className: "muted merges", textContent: left.length ? ABOUT : n ? ASIDE : NONE });
  const more = button(`Show ${number(n)} put aside as not the same`, "", () => {
    areShown = true;
    arrangeCards(decides, { keepsPlaces: false });
  });
  arrange($("panel"), [about, ...[...cards.values()].map(({ element }) => element), ...(n ? [more] : [])]);
}

// The card of a pair, made anew only where it says something else than before. A press counts once it is seen at its
// place with all pictures.
function cardOf(pair, at, decides) {
  const before = cards.get(keyOf(pair));
  const sides = [pair.a, pair.b].map((id) =>
    [data.store.categories.get(id), data.sizeOf(id), data.sureOf(id).toFixed(2), data.typicalOf(id, 18)]);
  const said = isOpen(pair) ? JSON.stringify([pair, data.areApart(pair.a, pair.b), sides]) : "";
  if (before?.said === said && before.at === at) return before;
  const card = { pair, at, said, screen: before?.screen ?? makeScreen(), element: before?.element };
  if (before?.said !== said) card.element = said ? makeCard(card, decides) : makeGone(card);
  card.screen.changed(pictures(card.element));
  return card;
}

const makeArticle = ({ pair }, settings, ...children) => {
  const label = `${data.nameOf(pair.a)} and ${data.nameOf(pair.b)}`;
  return make("article", { tabIndex: -1, aria: { label }, data: { id: keyOf(pair) }, ...settings }, ...children);
};

function makeCard(card, decides) {
  const { pair: { a, b, separation, alike, second }, screen } = card;
  const percent = second === null ? 0 : number(Math.round(100 * second));
  const share = second === null ? "" : `; for ${percent} % of their images the other one is the second choice`;
  const verb = (words, action, said, settings = {}) => {
    const decided = (event) => isFirst(event) && screen.wasSeen(event) && decides(event, action, said);
    return button(words, "", decided, { disabled: data.store.run.read_only, ...settings });
  };
  const into = (id, other) => {
    const name = data.nameOf(id), action = { action: "merge", into: id, categories: [other] };
    return verb(`Merge into ${name}`, action, `merged into ${name}`);
  };
  const distinct = { action: "distinct", categories: [a, b] };
  const apart = data.areApart(a, b)
    ? bdi("Somebody said that they are not the same.")
    : verb("Not the same", distinct, "put aside as not the same", { data: { again: "" } }); // the next one too, perhaps
  return makeArticle(card, { className: "merge" },
    make("div", { className: "pair" }, sideOf(a), sideOf(b)),
    make("p", { className: "muted" }, bdi(`Separation ${separation.toFixed(1)}`),
      ...(alike ? [": ", make("strong", { textContent: "as close as halves of one" })] : []), bdi(`${share}.`)),
    make("div", { className: "tools" }, into(b, a), into(a, b), apart));
}

// What stands where somebody else has decided on a pair, or changed one of the two, as high as its card was.
function makeGone(card) {
  const { a, b } = card.pair, { offsetHeight } = card.element;
  const words = [bdi(data.nameOf(a)), " and ", bdi(data.nameOf(b)), ": somebody has changed one of them meanwhile."];
  const gone = makeArticle(card, { className: "merge gone" }, make("p", { className: "muted" }, ...words));
  gone.style.height = `${offsetHeight}px`;
  return gone;
}
