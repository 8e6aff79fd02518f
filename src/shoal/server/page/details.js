// One image: the original, what is known of it, and the nearest known category beside it.
import { getJson, Refused } from "/static/api.js";
import { $, ask, bdi, button, digits, make, moment, say, thumb } from "/static/dom.js";
import { awaited, isFirst, isRefused, keyOf, makePresses, makeScreen } from "/static/presses.js";
import * as data from "/static/store.js";
import { pictures, showThumbnail } from "/static/thumbs.js";
import { makeZoom } from "/static/zoom.js";

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
  const own = data.nameOf(data.store.category[image.row]);
  const said = [image.path, own, image.status, `confidence ${digits(image.confidence)}`];
  if (image.given) said.push(`labeled ${image.given}`);
  return said.join(", ");
}

const addressOf = (row) => `/image/${row}?v=${data.store.run.version}`;
const wholeOf = (row) => (data.store.run.has.originals ? `${addressOf(row)}&whole=1` : null);

function picture(row, isLarge, alt = "") {
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
    };
    original.onerror = () => getJson(`/image/${row}`, { v: data.store.run.version }).catch((error) => {
      if (error instanceof Refused) tellWhy(frame, error.message); // otherwise the server is away, which is said
    });
    original.src = addressOf(row);
  }
  return frame;
}

// A thumbnail that stands for the original says so, and all of why where there is room.
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

function facts(image) {
  const rows = [
    ["Category", data.nameOf(data.store.category[image.row])],
    ["Found as", image.found === data.nameOf(data.store.category[image.row]) ? "" : image.found],
    ["Given label", image.given],
    ["Images around", data.isSuspected(image.row) ? `speak for ${data.aroundOf(image.row)}` : ""],
    ["Confidence", digits(image.confidence)],
    ["Outlier score", digits(image.outlier)],
    ["Status", image.by ? `${image.status} by ${image.by}, ${moment(image.at)}` : image.status],
    ["Rejected from", image.rejected.join(", ")],
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
  const own = data.nameOf(data.store.category[image.row]);
  const isBoth = image.nearest === image.second, words = isBoth ? "Nearest known and second choice" : "Nearest known";
  if (image.nearest && image.nearest !== own) found.append(side(words, image.nearest, digits(image.similarity)));
  if (image.second && image.second !== own && !isBoth) found.append(side("Second choice", image.second, ""));
  return found;
}

// Whether there is another category that an image may be of.
const hasSecond = ({ row, second }) =>
  Boolean(second) && ![undefined, data.store.category[row]].includes(data.named(second)?.id);

// Whether a press was made when the details of an image were there, with its second choice.
const screen = makeScreen();
let detailed = "";
export function wasDetailed(event, row) {
  if ($("details").checkVisibility()) return screen.wasSeen(detailed.startsWith(`${row} `) ? event : { timeStamp: -1 });
  say("The second choice is not shown here: enlarge the image (Enter), and press it there.", true);
  return false;
}

// Another image is in focus. Until its details are drawn those of the one before are there, and their buttons are off.
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

let refresh = null; // what the enlarged view says of its image
data.onChange(() => data.isActing() || refresh?.());

// Keys that show something else in place of the view, and those that decide on nothing that has to be seen first.
const LEAVING = ["m", "n", "l"], AHEAD = ["u", "U"];

// Images large, one after the other, from the one that is `coming` on. Keys decide on the one that is shown, and go on
// to the next. One that shows something else, a question for a name for example, is given back with its image.
export async function enlarge(coming, { step, next, keys }, turn) {
  const pressed = makePresses(), screen = makeScreen();
  let shown = null;
  const asked = await ask("Image", (form, done) => {
    const waiting = make("p", { className: "muted", textContent: "Waiting for the server …" });
    const place = make("div"), words = make("div", { className: "stack", aria: { live: "polite" } }, waiting);
    const drawWords = () => {
      words.replaceChildren(compare(shown), facts(shown));
      for (const one of tools.querySelectorAll("[data-second]")) {
        const isOff = !hasSecond(shown);
        if (isOff && one === document.activeElement) form.querySelector("[autofocus]").focus(); // keys go on
        one.hidden = isOff;
      }
    };
    let zoom = null;
    const draw = () => {
      $("dialog-title").textContent = shown.name;
      const frame = picture(shown.row, true, shown.path), image = frame.firstChild;
      place.replaceChildren(frame);
      zoom = makeZoom(frame, image, wholeOf(shown.row));
      drawWords();
      screen.changed(pictures(place));
      if (next() >= 0 && data.store.run.has.originals) new Image().src = addressOf(next());
    };
    const show = async (row) => {
      if (row < 0) return done(null);
      if (!shown) place.replaceChildren(picture(row, true));
      const [image] = await awaited(describe([row]));
      if (!form.isConnected) return;
      shown = image ?? shown;
      draw();
    };
    const zooms = (key) => zoom?.press(key);
    const turned = (event, by) => pressed(event, () => shown && show(step(by, shown.row)));
    const wasSeen = (event) => isFirst(event) && screen.wasSeen(event);
    const press = (event, key) => pressed(event, async () => {
      if (LEAVING.includes(key)) return done({ key, row: shown.row });
      const isDone = await keys[key](shown.row);
      if (isDone || AHEAD.includes(key)) await show(step(0, shown.row));
      else refresh(); // what is said is about this one
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
    $("dialog").onkeydown = (event) => { // of the dialog: a click on the picture takes the focus out of the form
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
      if (form.isConnected) await show(row).catch((error) => (done(null), say(error.message, true)));
    });
  }, { large: true, turn });
  refresh = null;
  if (shown) await pressed.later(() => {}); // what was decided here is answered before another key counts
  return asked;
}

function viewerTools(turn, press, zooms, done) {
  const verb = (words, key, settings = {}) => button(words, key, (event) => press(event, key), settings);
  const second = { data: { second: "" } }; // there only with an image that has one
  const next = button("Next ", "→", (event) => turn(event, 1));
  next.setAttribute("autofocus", "");
  const steps = [button("Previous ", "←", (event) => turn(event, -1)), next];
  steps.push(button("Zoom in ", "+", () => zooms("+")), button("Zoom out ", "-", () => zooms("-")));
  steps.push(verb("Find similar ", "l"));
  steps.push(button("Close ", "Esc", () => done(null)));
  const decisions = [
    verb("Confirm ", "c", { className: "main" }), verb("Reject ", "x"), verb("Flag ", "f"), verb("Move ", "m"),
    verb("New ", "n", { title: "A new category of it" }), verb("To second choice ", "2", second),
    verb("Undo ", "u"),
  ];
  const found = make("div", { className: "stack" });
  if (!data.store.run.read_only) found.append(make("div", { className: "tools" }, ...decisions));
  found.append(make("div", { className: "tools" }, ...steps));
  return found;
}
