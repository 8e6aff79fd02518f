// What takes the place of the grid: suggested merges with their evidence.
import { getJson } from "/static/api.js";
import { $, arrange, bdi, button, make, number } from "/static/dom.js";
import { sideOf } from "/static/dialogs.js";
import { awaited } from "/static/presses.js";
import * as data from "/static/store.js";

const ABOUT = "The closest pairs of categories, the closest first. Where two lie as close as the halves of one "
  + "category do (a separation below 3.5), look whether they are one: different things may lie as close.";
const NONE = "There is no pair to compare: that takes a novel category and another, of three images each.";
const ASIDE = "Somebody said of each of the closest pairs that they are not the same.";

let areShown = false; // pairs of which somebody said that they are not the same
let pairs = []; // as the server found them last
let asked = 0;
const cards = new Map(); // by pair

// `decides` is given what somebody chose. With `isSame` it is shown already: what is still there stays where it is, and
// the server is asked for the rest.
export async function drawMerges(decides, { isSame = false } = {}) {
  const place = $("panel"), mine = ++asked;
  if (isSame && place.querySelector(".merges")) arrangeCards(decides);
  else if (!isSame || !place.querySelector(".waiting")) showWords("Comparing categories …", "waiting");
  try {
    const found = await awaited(getJson("/api/merges"));
    if (mine !== asked || !place.querySelector(".merges, .waiting")) return; // something else is shown there by now
    pairs = found;
    arrangeCards(decides);
  } catch (error) {
    if (mine === asked) showWords(error.message, "waiting");
  }
}

function showWords(words, name) {
  cards.clear();
  $("panel").replaceChildren(make("p", { className: `muted ${name}`, textContent: words }));
}

// The pairs that are two categories still, each on its card.
function arrangeCards(decides) {
  const there = pairs.filter(({ a, b }) => data.isLiving(a) && data.isLiving(b));
  const left = there.filter(({ a, b }) => areShown || !data.areApart(a, b)), n = there.length - left.length;
  const about = make("p", { className: "muted merges", textContent: left.length ? ABOUT : n ? ASIDE : NONE });
  const more = button(`Show ${number(n)} put aside as not the same`, "", () => {
    areShown = true;
    arrangeCards(decides);
  });
  const wanted = left.map((pair) => cardOf(pair, decides));
  for (const [name, { element }] of cards) if (!wanted.includes(element)) cards.delete(name);
  arrange($("panel"), [about, ...wanted, ...(n ? [more] : [])]);
}

// The card of a pair, made anew only where it says something else than before.
function cardOf(pair, decides) {
  const name = `${pair.a} ${pair.b}`, known = cards.get(name);
  const sides = [pair.a, pair.b].map((id) =>
    [data.store.categories.get(id), data.sizeOf(id), data.sureOf(id).toFixed(2), data.typicalOf(id, 18)]);
  const said = JSON.stringify([pair, data.areApart(pair.a, pair.b), sides]);
  if (known?.said === said) return known.element;
  const element = makeCard(pair, decides);
  element.dataset.id = name;
  cards.set(name, { said, element });
  return element;
}

function makeCard({ a, b, separation, alike, second }, decides) {
  const percent = second === null ? 0 : number(Math.round(100 * second));
  const share = second === null ? "" : `; for ${percent} % of their images the other one is the second choice`;
  const settings = { disabled: data.store.run.read_only };
  const verb = (words, action, said) => button(words, "", (event) => decides(event, action, said), settings);
  const into = (id, other) => {
    const name = data.nameOf(id), action = { action: "merge", into: id, categories: [other] };
    return verb(`Merge into ${name}`, action, `merged into ${name}`);
  };
  const apart = data.areApart(a, b)
    ? bdi("Somebody said that they are not the same.")
    : verb("Not the same", { action: "distinct", categories: [a, b] }, "put aside as not the same");
  return make("article", { className: "merge" },
    make("div", { className: "pair" }, sideOf(a), sideOf(b)),
    make("p", { className: "muted" }, bdi(`Separation ${separation.toFixed(1)}`),
      ...(alike ? [": ", make("strong", { textContent: "as close as halves of one" })] : []), bdi(`${share}.`)),
    make("div", { className: "tools" }, into(b, a), into(a, b), apart));
}
