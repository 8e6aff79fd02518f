// One image: the original, its details, and the nearest known category.
import { getJson, Refused } from "/static/api.js";
import { $, ask, bdi, button, clamped, digits, make, moment, notify, thumb } from "/static/dom.js";
import { awaited, isFirst, isRefused, keyOf, makePresses, makeScreen } from "/static/presses.js";
import * as data from "/static/store.js";
import { pictures, showThumbnail } from "/static/thumbs.js";
import { makeZoom } from "/static/zoom.js";

const known = new Map();

// Details of images from the server, requested once per state of the review.
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
  const category = data.nameOf(data.store.category[image.row]);
  const words = [image.path, category, image.status, `confidence ${digits(image.confidence)}`];
  if (image.given) words.push(`labeled ${image.given}`);
  if (image.note) words.push(image.note);
  return words.join(", ");
}

const addressOf = (row, isAround = false) => `/image/${row}?v=${data.store.run.version}${isAround ? "&around=1" : ""}`;
const wholeOf = (row, isAround) => (data.store.run.has.originals ? `${addressOf(row, isAround)}&whole=1` : null);

// Draw the boxes of an image over it, with their categories; `row` is the one in question.
const SVG = "http://www.w3.org/2000/svg", LETTERS = 13; // pixels
function drawBoxes(frame, { size: [width, height], boxes }, row) {
  const svg = document.createElementNS(SVG, "svg");
  const scale = Math.min(frame.clientWidth / width, frame.clientHeight / height);
  const draw = (name, attributes) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    svg.append(element);
    return element;
  };
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("aria-hidden", "true");
  for (const [other, x, y, width, height] of boxes) {
    const name = other === row ? "this" : "other";
    draw("rect", { x, y, width, height, class: name });
    const text = draw("text", { x, y: y + (LETTERS + 2) / scale, dx: 4 / scale, "font-size": LETTERS / scale, class: name });
    text.textContent = clamped(data.nameOf(data.store.category[other]));
  }
  svg.style.cssText = frame.querySelector("img").style.cssText; // where it is zoomed
  frame.querySelector("svg")?.remove();
  frame.querySelector("img").after(svg);
}

// The categories of the other boxes of an image.
const othersIn = ({ boxes }, row) =>
  boxes.filter(([other]) => other !== row).map(([other]) => data.nameOf(data.store.category[other])).join(", ");

// The middle of a box, as shares of the width and height of its image.
function centerOf({ size, boxes }, row) {
  const [, x, y, width, height] = boxes.find(([other]) => other === row);
  return [(x + width / 2) / size[0], (y + height / 2) / size[1]];
}

// `around` are the boxes of the image that is shown instead of the box alone.
function picture(row, isLarge, alt = "", around = null) {
  const image = make("img", { className: "large", alt, decoding: "async" });
  const frame = make("div", { className: isLarge ? "picture whole" : "picture" }, image);
  showThumbnail(row, image);
  const { has, originals_missing: missing } = data.store.run;
  if (!has.originals && missing) tellWhy(frame, missing);
  if (has.originals) {
    const original = new Image();
    original.onload = () => {
      if (image.classList.contains("whole")) return; // larger already
      image.src = original.src;
      image.classList.add("original");
      if (around) drawBoxes(frame, around, row);
    };
    original.onerror = () => getJson(`/image/${row}`, { v: data.store.run.version }).catch((error) => {
      if (error instanceof Refused) tellWhy(frame, error.message); // an unreachable server is reported elsewhere
    });
    original.src = addressOf(row, Boolean(around));
  }
  return frame;
}

// Note that a thumbnail is shown instead of the original, with the full reason if there is room.
function tellWhy(frame, why) {
  const what = data.store.run.has.thumbnails ? "Only a thumbnail" : "No picture";
  const textContent = frame.classList.contains("whole") ? `${what}: ${why}` : what;
  frame.append(make("p", { className: "why", textContent, title: why }));
}

function side(words, name, note) {
  const category = data.named(name);
  const row = category ? data.typicalOf(category.id, 1)[0] : undefined;
  const shown = row === undefined ? make("span", { className: "thumb" }) : thumb(row);
  const more = note ? make("span", { className: "muted", textContent: ` ${note}` }) : null;
  return make("figure", {}, shown, make("figcaption", {}, words, make("br"), bdi(name), more));
}

function facts(image, around = null) {
  const rows = [
    ["Category", data.nameOf(data.store.category[image.row])],
    ["Found category", image.found === data.nameOf(data.store.category[image.row]) ? "" : image.found],
    ["Given label", image.given],
    ["Neighbors suggest", data.isSuspicious(image.row) ? data.expectedOf(image.row) : ""],
    ["Confidence", digits(image.confidence)],
    ["Outlier score", digits(image.outlier)],
    ["Status", image.by ? `${image.status} by ${image.by}, ${moment(image.at)}` : image.status],
    ["Note", image.note],
    ["Date", data.dateOf(image.row)],
    ["Rejected from", image.rejected.join(", ")],
    ["Other boxes", around ? othersIn(around, image.row) : ""],
    ["Path", image.path],
  ];
  const list = make("dl", { className: "facts" });
  for (const [name, value] of rows) {
    if (value) list.append(make("dt", { textContent: name }), make("dd", {}, bdi(value)));
  }
  return list;
}

function compare(image) {
  const found = make("div", { className: "compare" });
  const name = data.nameOf(data.store.category[image.row]);
  const isBoth = image.nearest === image.second, words = isBoth ? "Nearest known and second choice" : "Nearest known";
  if (image.nearest && image.nearest !== name) found.append(side(words, image.nearest, digits(image.similarity)));
  if (image.second && image.second !== name && !isBoth) found.append(side("Second choice", image.second, ""));
  return found;
}

// Whether an image has a second choice.
const hasSecond = ({ row, second }) =>
  Boolean(second) && ![undefined, data.store.category[row]].includes(data.named(second)?.id);

// Whether the details of an image, with its second choice, were visible when a key was pressed.
const screen = makeScreen();
let detailed = "";
export function wasDetailed(event, row) {
  if ($("details").checkVisibility()) return screen.wasSeen(detailed.startsWith(`${row} `) ? event : { timeStamp: -1 });
  notify("The second choice is not shown here: enlarge the image (Enter), then press the key.", true);
  return false;
}

// Another image is in focus. Until its details are drawn, those of the previous one stay with disabled buttons.
export function awaitDetails(row) {
  const place = $("details"), isOther = !detailed.startsWith(`${row} `);
  place.dataset.wanted = row;
  place.ariaBusy = String(isOther && row >= 0);
  for (const one of place.querySelectorAll("button")) one.disabled = isOther;
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
  const enlarges = (event) => press(event, (turn) => verbs.open(turn, row), { asks: true });
  const tools = make("div", { className: "tools" }, button("Enlarge ", "Enter", enlarges));
  const finds = (event) => press(event, () => verbs.similar(row));
  tools.append(button("Find similar ", "l", finds));
  if (hasSecond(image) && !data.store.run.read_only) {
    const moves = (event) => press(event, () => verbs.second(row), { wasSeen: isFirst });
    tools.append(button("To second choice ", "2", moves));
  }
  const heading = make("h2", {}, bdi(image.name));
  place.replaceChildren(picture(row, false, image.path), heading, compare(image), facts(image), tools);
  place.ariaBusy = "false";
  if (detailed !== `${row} ${image.second}`) screen.changed();
  detailed = `${row} ${image.second}`;
}

let refresh = null; // updates the text of the enlarged view
data.onChange(() => data.isActing() || refresh?.());

// Keys that leave the view, and keys that need nothing to be seen first.
const LEAVING = ["m", "n", "l"], AHEAD = ["u", "U"];

// Show enlarged images one after the other, starting with `coming`. Keys decide about the one that is shown and go to
// the next. A key that opens another view, such as a dialog for a name, is returned with its image.
export async function enlarge(coming, { step, next, keys }, turn) {
  const pressed = makePresses(), screen = makeScreen();
  let shown = null, around = null;
  const asked = await ask("Image", (form, done) => {
    const waiting = make("p", { className: "muted", textContent: "Waiting for the server …" });
    const place = make("div"), words = make("div", { className: "stack", aria: { live: "polite" } }, waiting);
    const drawWords = () => {
      words.replaceChildren(compare(shown), facts(shown, around));
      if (place.querySelector("svg")) drawBoxes(place.firstChild, around, shown.row);
      for (const one of tools.querySelectorAll("[data-second]")) {
        const isOff = !hasSecond(shown);
        if (isOff && one === document.activeElement) form.querySelector("[autofocus]").focus(); // keys keep working
        one.hidden = isOff;
      }
    };
    let zoom = null;
    const draw = () => {
      $("dialog-title").textContent = shown.name;
      const frame = picture(shown.row, true, shown.path, around), image = frame.firstChild;
      place.replaceChildren(frame);
      zoom = makeZoom(frame, image, wholeOf(shown.row, Boolean(around)), around ? centerOf(around, shown.row) : undefined);
      drawWords();
      screen.changed(pictures(place));
      if (next() >= 0 && data.store.run.has.originals) new Image().src = addressOf(next(), Boolean(around));
    };
    const show = async (row) => {
      if (row < 0) return done(null);
      if (!shown) place.replaceChildren(picture(row, true));
      const [image] = await awaited(describe([row]));
      const now = image ?? shown, isBox = now.is_box && data.store.run.has.originals;
      const boxes = isBox ? await getJson("/api/boxes", { row: now.row }).catch(() => null) : null;
      if (!form.isConnected) return;
      [shown, around] = [now, boxes];
      draw();
    };
    const zooms = (key) => zoom?.press(key);
    const turned = (event, by) => pressed(event, () => shown && show(step(by, shown.row)));
    const wasSeen = (event) => isFirst(event) && screen.wasSeen(event);
    const press = (event, key) => pressed(event, async () => {
      if (LEAVING.includes(key)) return done({ key, row: shown.row });
      const isDone = await keys[key](shown.row);
      if (isDone || AHEAD.includes(key)) await show(step(0, shown.row));
      else refresh(); // still the same image
    }, { wasSeen: () => $("dialog").open && shown && (AHEAD.includes(key) || wasSeen(event)) });
    refresh = () => pressed.later(async () => {
      if (!shown) return;
      const before = words.textContent;
      [shown = shown] = await describe([shown.row]);
      drawWords();
      if (words.textContent !== before) screen.changed();
    });
    const tools = viewerTools(turned, press, zooms, done);
    form.append(make("div", { className: "viewer" }, place, make("div", {}, words, tools)));
    $("dialog").onkeydown = (event) => { // on the dialog: a click on the picture takes the focus out of the form
      const key = keyOf(event), isOther = event.ctrlKey || event.metaKey || event.altKey;
      if (!isOther && zoom?.press(key)) return event.preventDefault();
      const by = { ArrowLeft: -1, ArrowRight: 1 }[key];
      const command = event.ctrlKey || event.metaKey ? { z: "u", Z: "U", y: "U" }[key] : key;
      if (event.altKey || (!by && !Object.hasOwn(keys, command) && !LEAVING.includes(command))) return;
      event.preventDefault();
      if (by) turned(event, by);
      else if (!event.repeat && !isRefused(command)) press(event, command);
    };
    pressed.later(async () => {
      const row = await coming;
      if (form.isConnected) await show(row).catch((error) => (done(null), notify(error.message, true)));
    });
  }, { large: true, turn });
  refresh = null;
  if (shown) await pressed.later(() => {}); // wait for the server before another key counts
  return asked;
}

function viewerTools(turn, press, zooms, done) {
  const verb = (words, key, settings = {}) => button(words, key, (event) => press(event, key), settings);
  const second = { data: { second: "" } }; // shown only for an image with a second choice
  const next = button("Next ", "→", (event) => turn(event, 1));
  next.setAttribute("autofocus", "");
  const steps = [button("Previous ", "←", (event) => turn(event, -1)), next];
  steps.push(button("Zoom in ", "+", () => zooms("+")), button("Zoom out ", "-", () => zooms("-")));
  steps.push(verb("Find similar ", "l"));
  steps.push(button("Close ", "Esc", () => done(null)));
  const decisions = [
    verb("Confirm ", "c", { className: "main" }), verb("Reject ", "x"), verb("Flag ", "f"), verb("Move ", "m"),
    verb("New ", "n", { title: "Create a new category from it" }), verb("To second choice ", "2", second),
    verb("Undo ", "u"),
  ];
  const found = make("div", { className: "stack" });
  if (!data.store.run.read_only) found.append(make("div", { className: "tools" }, ...decisions));
  found.append(make("div", { className: "tools" }, ...steps));
  return found;
}
