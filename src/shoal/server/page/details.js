// One image: the original, what is known of it, and the nearest known category beside it.
import { getJson } from "/static/api.js";
import { $, ask, bdi, button, digits, make, say, thumb } from "/static/dom.js";
import { awaited, makePresses, makeScreen } from "/static/presses.js";
import * as data from "/static/store.js";
import { showThumbnail } from "/static/thumbs.js";

const known = new Map();

// What the server knows of images; asked once per state of the review.
export async function describe(rows) {
  if (known.size > 20000) known.clear();
  const missing = rows.filter((row) => known.get(row)?.seq !== data.store.seq);
  for (let at = 0; at < missing.length; at += 200) {
    const seq = data.store.seq;
    const found = await getJson("/api/images", { rows: missing.slice(at, at + 200).join(",") });
    for (const image of found) known.set(image.row, { ...image, seq });
  }
  return rows.map((row) => known.get(row)).filter(Boolean);
}

export function inWords(image) {
  const said = [image.path, data.nameOf(data.store.category[image.row]), image.status, `confidence ${digits(image.confidence)}`];
  if (image.given) said.push(`labeled ${image.given}`);
  return said.join(", ");
}

const addressOf = (row) => `/image/${row}?v=${data.store.run.version}`;

function picture(row, isLarge) {
  const image = make("img", { className: "large", alt: "", decoding: "async" });
  showThumbnail(row, image);
  if (data.store.run.has.originals) {
    const original = new Image();
    original.onload = () => {
      image.src = original.src;
      image.classList.add("original");
    };
    original.src = addressOf(row);
  }
  return make("div", { className: isLarge ? "picture whole" : "picture" }, image);
}

function side(words, name, note) {
  const category = data.named(name);
  const row = category ? data.typicalOf(category.id, 1)[0] : undefined;
  const shown = row === undefined ? make("span", { className: "thumb" }) : thumb(row);
  return make("figure", {}, shown, make("figcaption", {}, words, make("br"), bdi(name), note ? make("span", { className: "muted", textContent: ` ${note}` }) : null));
}

function facts(image) {
  const rows = [
    ["Category", data.nameOf(data.store.category[image.row])],
    ["Found as", image.found === data.nameOf(data.store.category[image.row]) ? "" : image.found],
    ["Given label", image.given],
    ["Confidence", digits(image.confidence)],
    ["Outlier score", digits(image.outlier)],
    ["Status", image.by ? `${image.status} by ${image.by}, ${image.at.slice(0, 16).replace("T", " ")}` : image.status],
    ["Rejected from", image.rejected.join(", ")],
    ["Path", image.path],
  ];
  const list = make("dl", { className: "facts" });
  for (const [name, value] of rows) if (value) list.append(make("dt", { textContent: name }), make("dd", {}, bdi(value)));
  return list;
}

function compare(image) {
  const found = make("div", { className: "compare" });
  const own = data.nameOf(data.store.category[image.row]);
  const isBoth = image.nearest === image.second;
  if (image.nearest && image.nearest !== own) found.append(side(isBoth ? "Nearest known and second choice" : "Nearest known", image.nearest, digits(image.similarity)));
  if (image.second && image.second !== own && !isBoth) found.append(side("Second choice", image.second, ""));
  return found;
}

// Whether a press was made when the details of an image were there, with its second choice.
const screen = makeScreen();
let detailed = "";
export function wasDetailed(event, row) {
  if ($("details").checkVisibility()) return screen.wasSeen(detailed.startsWith(`${row} `) ? event : { timeStamp: -1 });
  say("The second choice is not shown here: enlarge the image (Enter), and press it there.", true);
  return false;
}

export async function drawDetails(row, verbs, press) {
  const place = $("details");
  if (row < 0) {
    place.replaceChildren();
    detailed = "";
    return;
  }
  const [image] = await describe([row]);
  if (!image || place.dataset.wanted !== String(row)) return;
  const tools = make("div", { className: "tools" }, button("Enlarge ", "Enter", (event) => press(event, () => verbs.open(row), { waits: true })));
  if (data.store.run.has.embeddings) tools.append(button("Find similar ", "l", (event) => press(event, () => verbs.similar(row))));
  if (image.second && data.named(image.second) && !data.store.run.read_only) {
    const both = [["To second choice ", "2", verbs.second], ["Between both ", "b", verbs.either]];
    tools.append(...both.map(([words, key, does]) => button(words, key, (event) => press(event, () => does(row)))));
  }
  place.replaceChildren(picture(row, false), make("h2", {}, bdi(image.name)), compare(image), facts(image), tools);
  if (detailed !== `${row} ${image.second}`) screen.changed();
  detailed = `${row} ${image.second}`;
}

let refresh = null; // what the enlarged view says of its image
data.onChange(() => data.isActing() || refresh?.());

// Keys that ask for a name, and those that decide on nothing that would have to be seen first.
const NAMING = ["m", "n"], AHEAD = ["u", "U"];

// Images large, one after the other. Keys decide on the one that is shown, and go on to the next. One that asks for a name
// is given back with its image: the question takes the place of the view.
export async function enlarge(row, { step, next, keys }) {
  const [image] = await awaited(describe([row])), pressed = makePresses(), screen = makeScreen();
  if (!image) return null;
  const asked = await ask(image.name, (form, done) => {
    const place = make("div"), words = make("div", { className: "stack", aria: { live: "polite" } });
    let shown = image;
    const drawWords = () => words.replaceChildren(compare(shown), facts(shown));
    const draw = () => {
      $("dialog-title").textContent = shown.name;
      place.replaceChildren(picture(shown.row, true));
      drawWords();
      screen.changed();
      if (next() >= 0 && data.store.run.has.originals) new Image().src = addressOf(next());
    };
    const show = async (row) => {
      if (row < 0) return done(null);
      [shown = shown] = await describe([row]);
      if (form.isConnected) draw();
    };
    const turn = (event, by) => pressed(event, () => show(step(by, shown.row)));
    const press = (event, key) => pressed(event, async () => {
      if (NAMING.includes(key)) return done({ key, row: shown.row });
      await keys[key](shown.row);
      await show(step(0, shown.row));
    }, { wasSeen: () => $("dialog").open && (AHEAD.includes(key) || screen.wasSeen(event)) });
    refresh = () => pressed.later(async () => {
      const before = words.textContent;
      [shown = shown] = await describe([shown.row]);
      drawWords();
      if (words.textContent !== before) screen.changed();
    });
    form.append(make("div", { className: "viewer" }, place, make("div", {}, words, viewerTools(turn, press, done))));
    $("dialog").onkeydown = (event) => { // of the dialog: a click on the picture takes the focus out of the form
      const { key } = event, by = { ArrowLeft: -1, ArrowRight: 1 }[key];
      const command = event.ctrlKey || event.metaKey ? { z: event.shiftKey ? "U" : "u", Z: "U", y: "U" }[key] : key;
      if (event.altKey || (!by && !Object.hasOwn(keys, command) && !NAMING.includes(command))) return;
      event.preventDefault();
      if (by) turn(event, by);
      else if (!event.repeat) press(event, command);
    };
    draw();
  }, { large: true });
  refresh = null;
  await pressed.later(() => {}); // what was decided here is answered before another key counts
  return asked;
}

function viewerTools(turn, press, done) {
  const verb = (words, key, settings = {}) => button(words, key, (event) => press(event, key), settings);
  const steps = [button("Previous ", "←", (event) => turn(event, -1)), button("Next ", "→", (event) => turn(event, 1)), button("Close ", "Esc", () => done(null))];
  steps[1].setAttribute("autofocus", "");
  const found = make("div", { className: "stack" });
  if (!data.store.run.read_only) {
    found.append(make("div", { className: "tools" }, verb("Confirm ", "c", { className: "main" }), verb("Reject ", "x"), verb("Flag ", "f"), verb("Move ", "m"), verb("New ", "n", { title: "A new category of it" }), verb("To second choice ", "2"), verb("Between both ", "b"), verb("Undo ", "u")));
  }
  found.append(make("div", { className: "tools" }, ...steps));
  return found;
}
