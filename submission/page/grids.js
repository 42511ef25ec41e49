"use strict";
// Grids as SVG: sharp at every size and on paper. A grid is a text, rows parted by "/", a digit a cell.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = ["svg", "path"];

// What went wrong is shown to the reader, and counted where a test can see it.
addEventListener("error", (event) => {
  const box = document.getElementById("errors");
  box.hidden = false;
  box.append(make("p", {}, "Error in this page: " + event.message));
  document.documentElement.dataset.errors = box.children.length;
});

// An element. Texts are only ever set as text, so nothing in the data can become markup.
function make(tag, attributes = {}, ...children) {
  const element = SVG_TAGS.includes(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.flat().filter((child) => child !== null));
  return element;
}

function plural(count, word) {
  return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
}

function percent(share, digits = 0) {
  return (100 * share).toFixed(digits) + " %";
}

function sizeOf(text) {
  const rows = text.split("/");
  return [rows.length, rows[0].length];
}

function sizeText(text) {
  return sizeOf(text).join(" × ");
}

// The cells as [symbol, row, column].
function cellsOf(text) {
  return text.split("/").flatMap((row, r) => [...row].map((symbol, c) => [symbol, r, c]));
}

// The cells in which two grids of equal size differ; null where their sizes differ.
function differences(text, other) {
  if (sizeText(text) !== sizeText(other)) return null;
  const rows = other.split("/");
  return cellsOf(text).filter(([symbol, r, c]) => symbol !== rows[r][c]);
}

// The side of a cell in pixels with which this grid and others beside it take about `room` pixels; larger
// than that of the others, up to 12, where this grid could hardly be seen otherwise.
function cellFor(room, text, ...others) {
  const fitting = (...texts) => Math.floor(room / Math.max(...texts.filter(Boolean).flatMap(sizeOf)));
  return Math.max(3, Math.min(28, Math.max(fitting(text, ...others), Math.min(12, fitting(text)))));
}

// A drawing of a grid; `marked` cells get a cross. Without a label it is decoration that a screen reader skips.
function drawGrid(text, cell, { label = null, marked = [] } = {}) {
  const [height, width] = sizeOf(text), paths = {};
  for (const [symbol, r, c] of cellsOf(text)) paths[symbol] = (paths[symbol] ?? "") + `M${c} ${r}h1v1h-1z`;
  const svg = make("svg", {
    class: cell < 6 ? "grid" : "grid lined", viewBox: `0 0 ${width} ${height}`,
    width: width * cell, height: height * cell,
    ...(label === null ? { "aria-hidden": "true" } : { role: "img", "aria-label": label }),
  });
  for (const [symbol, d] of Object.entries(paths)) svg.append(make("path", { d, fill: DATA.palette[symbol] }));
  const d = marked.map(([, r, c]) => `M${c + 0.25} ${r + 0.25}l.5 .5m0 -.5l-.5 .5`).join("");
  svg.append(make("path", { class: "cross under", d }), make("path", { class: "cross", d }));
  return svg;
}

// A grid with its caption, and words for those who cannot see it.
function gridFigure(caption, text, cell, { note = null, tone = "", marked = [] } = {}) {
  const rows = text.split("/").map((row) => [...row].join(" ")).join("; ");
  const label = `${caption}, ${plural(sizeOf(text)[0], "row")}, ${plural(sizeOf(text)[1], "column")}: ${rows}`;
  return make("figure", { class: tone },
    make("figcaption", {}, make("b", {}, caption), " ", make("span", { class: "detail" }, sizeText(text))),
    drawGrid(text, cell, { label, marked }), note && make("p", { class: "note" }, note));
}
