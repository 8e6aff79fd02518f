"use strict";
// Shared by all parts of the page: the data, thumbnails by row, and the theme. Text is inserted as text, not as markup.
const $ = (id) => document.getElementById(id);
const readData = (id) => JSON.parse($(id).textContent);
const images = readData("data-images");
const placeOf = new Map(images.row.map((row, at) => [row, at]));

function make(tag, settings = {}, ...children) {
  const element = Object.assign(document.createElement(tag), settings);
  element.append(...children);
  return element;
}

let onPage = null;
let elsewhere = null;
function thumbnail(row) {
  if (!onPage) {
    onPage = new Map();
    for (const tile of document.querySelectorAll("button.tile[data-row]")) {
      const picture = tile.querySelector("img");
      if (picture) onPage.set(Number(tile.dataset.row), picture.src);
    }
    elsewhere = readData("data-thumbnails");
  }
  return onPage.get(row) ?? elsewhere[row] ?? null;
}

function image(row) {
  const at = placeOf.get(row);
  const category = images.categories[images.category[at]];
  const named = (place) => (place < 0 ? "" : images.names[place]);
  return {
    row,
    path: images.path[at],
    category: category ? category.name : "possibly new",
    isNovel: category ? category.novel : true,
    typical: category ? category.typical : -1,
    confidence: images.confidence[at],
    outlier: images.outlier[at],
    given: named(images.given[at]),
    second: named(images.second[at]),
    nearest: named(images.nearest[at]),
    similarity: images.similarity[at],
  };
}

const digits = (value) => (value === null ? "–" : value.toFixed(2));
const kindMark = (isNovel) => (isNovel ? "◆" : "●");
const kindWord = (isNovel) => (isNovel ? "novel" : "known");

function tileOf(row) {
  const found = image(row);
  const words = `${found.path}, ${found.category}, confidence ${digits(found.confidence)}`;
  const button = make("button", { type: "button", className: "tile", title: found.path });
  button.dataset.row = row;
  const source = thumbnail(row);
  if (source) button.append(make("img", { src: source, alt: words, loading: "lazy", decoding: "async" }));
  else {
    const name = make("span", { className: "nameless" }, make("bdi", { textContent: found.path.split("/").pop() }));
    name.setAttribute("aria-hidden", "true");
    button.append(name, make("span", { className: "unseen", textContent: words }));
  }
  return button;
}

const root = document.documentElement;
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
let isPrinting = false; // on white, whatever the screen shows
const isDark = () => !isPrinting && (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
const onTheme = [];
function showTheme() {
  $("theme").textContent = isDark() ? "Light" : "Dark";
  $("theme").setAttribute("aria-label", `${$("theme").textContent} theme`);
  for (const tell of onTheme) tell();
}
function stored(value) {
  try {
    if (value) localStorage.setItem("shoal-theme", value);
    return localStorage.getItem("shoal-theme");
  } catch {
    return null; // storage may be disabled for pages opened from disk
  }
}
if (stored()) root.dataset.theme = stored();
$("theme").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  stored(root.dataset.theme);
  showTheme();
});
prefersDark.addEventListener("change", showTheme);
