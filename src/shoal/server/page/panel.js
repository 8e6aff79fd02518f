// The panel of suggested merges, shown instead of the grid.
import { getJson } from "/static/api.js";
import { $, arrange, bdi, button, make, number } from "/static/dom.js";
import { sideOf } from "/static/dialogs.js";
import { awaited, isFirst, makeScreen } from "/static/presses.js";
import * as data from "/static/store.js";
import { pictures } from "/static/thumbs.js";

const ABOUT = "Pairs of categories, closest first. Two categories with a separation below 3.5 are as close as two "
  + "halves of one category; they may still be different.";
const NONE = "There are no pairs to compare: a pair is a novel category and any other, each with three images or more.";
const ASIDE = "All of the closest pairs are marked as different.";

let areShown = false; // pairs that are marked as different
let pairs = []; // as the server found them last
let asked = 0;
let cards = new Map(); // those on the screen, from the first one on, by their pair

const keyOf = ({ a, b }) => `${Math.min(a, b)} ${Math.max(a, b)}`;
const isPair = ({ a, b }) => data.isLiving(a) && data.isLiving(b);
const isOpen = (pair) => isPair(pair) && (areShown || !data.areApart(pair.a, pair.b));

// `decides` receives the decision. With `isSame` the panel is already shown and only updated. Cards move only after the
// user's own action (`isOwn`): otherwise a click might hit the wrong card.
export async function drawMerges(decides, { isSame = false, isOwn = false } = {}) {
  const place = $("panel"), request = ++asked;
  if (isSame && place.querySelector(".merges")) arrangeCards(decides, { keepsPlaces: !isOwn });
  else if (!isSame || !place.querySelector(".waiting")) showWords("Comparing categories …", "waiting");
  try {
    const found = await awaited(getJson("/api/merges"));
    if (request !== asked || !place.querySelector(".merges, .waiting")) return; // something else is shown there by now
    pairs = found;
    arrangeCards(decides, { keepsPlaces: true });
  } catch (error) {
    if (request === asked) showWords(error.message, "waiting");
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

// Show a card for each pair that is still two categories, in the order of the server, except visible ones, which stay.
function arrangeCards(decides, { keepsPlaces }) {
  const latest = new Map(pairs.map((pair) => [keyOf(pair), pair]));
  const inPlace = (keepsPlaces ? pairsSeen() : []).map((pair) => latest.get(keyOf(pair)) ?? pair);
  const known = new Set(inPlace.map(keyOf)), open = pairs.filter(isOpen);
  const left = [...inPlace, ...open.filter((pair) => !known.has(keyOf(pair)))];
  const n = pairs.filter(isPair).length - open.length;
  cards = new Map(left.map((pair, at) => [keyOf(pair), cardOf(pair, at, decides)]));
  const about = make("p", { className: "muted merges", textContent: left.length ? ABOUT : n ? ASIDE : NONE });
  const more = button(`Show ${number(n)} marked as different`, "", () => {
    areShown = true;
    arrangeCards(decides, { keepsPlaces: false });
  });
  arrange($("panel"), [about, ...[...cards.values()].map(({ element }) => element), ...(n ? [more] : [])]);
}

// The card of a pair, recreated only if its content changed. A press counts once the card is visible at its place with
// all pictures.
function cardOf(pair, at, decides) {
  const before = cards.get(keyOf(pair));
  const sides = [pair.a, pair.b].map((id) =>
    [data.store.categories.get(id), data.sizeOf(id), data.confidenceOfCategory(id).toFixed(2), data.typicalOf(id, 18)]);
  const content = isOpen(pair) ? JSON.stringify([pair, data.areApart(pair.a, pair.b), sides]) : "";
  if (before?.content === content && before.at === at) return before;
  const card = { pair, at, content, screen: before?.screen ?? makeScreen(), element: before?.element };
  if (before?.content !== content) card.element = content ? makeCard(card, decides) : makeGone(card);
  card.screen.changed(pictures(card.element));
  return card;
}

const makeArticle = ({ pair }, settings, ...children) => {
  const label = `${data.nameOf(pair.a)} and ${data.nameOf(pair.b)}`;
  return make("article", { tabIndex: -1, aria: { label }, data: { id: keyOf(pair) }, ...settings }, ...children);
};

function makeCard(card, decides) {
  const { pair: { a, b, separation, alike, second }, screen } = card;
  const percent = number(Math.round(100 * second));
  const share = `; the other category is the second choice for ${percent} % of their images`;
  const verb = (words, action, content, settings = {}) => {
    const decided = (event) => isFirst(event) && screen.wasSeen(event) && decides(event, action, content);
    return button(words, "", decided, { disabled: data.store.run.read_only, ...settings });
  };
  const into = (id, other) => {
    const name = data.nameOf(id), action = { action: "merge", into: id, categories: [other] };
    return verb(`Merge into ${name}`, action, `merged into ${name}`);
  };
  const distinct = { action: "distinct", categories: [a, b] };
  const apart = data.areApart(a, b)
    ? bdi("They are marked as different.")
    : verb("Mark as different", distinct, "marked as different", { data: { again: "" } }); // the next one too, perhaps
  return makeArticle(card, { className: "merge" },
    make("div", { className: "pair" }, sideOf(a), sideOf(b)),
    make("p", { className: "muted" }, bdi(`Separation ${separation.toFixed(1)}`),
      ...(alike ? [": ", make("strong", { textContent: "as close as halves of one category" })] : []), bdi(`${share}.`)),
    make("div", { className: "tools" }, into(b, a), into(a, b), apart));
}

// The placeholder of a pair that somebody else decided or changed, as high as its card was.
function makeGone(card) {
  const { a, b } = card.pair, { offsetHeight } = card.element;
  const words = [bdi(data.nameOf(a)), " and ", bdi(data.nameOf(b)), ": somebody changed one of them."];
  const gone = makeArticle(card, { className: "merge gone" }, make("p", { className: "muted" }, ...words));
  gone.style.height = `${offsetHeight}px`;
  return gone;
}
