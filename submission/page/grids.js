"use strict";
// Grids as SVG: sharp at every size and on paper. A grid is a text, rows parted by "/": digits are colours,
// "." is PAD, "e" is EOS.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

// What went wrong is shown to the reader, and counted where a test can see it.
function fail(message) {
  const box = document.getElementById("errors");
  box.hidden = false;
  box.append(Object.assign(document.createElement("p"), { textContent: "This page failed: " + message }));
  document.documentElement.dataset.errors = box.children.length;
}
addEventListener("error", (event) => fail(event.message));
addEventListener("unhandledrejection", (event) => fail(event.reason));
document.addEventListener("securitypolicyviolation", (event) => fail("blocked " + event.blockedURI));

// An HTML element. Texts are only ever set as text, so nothing in the data can become markup.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  return fill(element, attributes, children);
}

function makeSvg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

function plural(count, word) {
  return count.toLocaleString("en") + " " + word + (count === 1 ? "" : "s");
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

function inWords(text) {
  const [rows, columns] = sizeOf(text);
  const symbols = text.split("/").map((row) => [...row].join(" ")).join("; ");
  return `${plural(rows, "row")}, ${plural(columns, "column")}: ${symbols}`;
}

// The cells in which two grids of equal size differ, as [row, column]; null where their sizes differ.
function differences(text, other) {
  const [a, b] = [text.split("/"), other.split("/")];
  if (a.length !== b.length || a[0].length !== b[0].length) return null;
  return cells(a).filter(([symbol, r, c]) => symbol !== b[r][c]).map(([, r, c]) => [r, c]);
}

// For every symbol of a grid the path that covers its cells, runs of cells in a row taken together.
function symbolPaths(rows) {
  const paths = new Map();
  rows.forEach((row, r) => {
    for (let c = 0, end; c < row.length; c = end) {
      for (end = c + 1; row[end] === row[c];) end++;
      paths.set(row[c], (paths.get(row[c]) ?? "") + `M${c} ${r}h${end - c}v1h${c - end}z`);
    }
  });
  return paths;
}

// Every cell as [symbol, row, column].
function cells(rows) {
  return rows.flatMap((row, r) => [...row].map((symbol, c) => [symbol, r, c]));
}

function cross([r, c]) {
  return `M${c + 0.25} ${r + 0.25}l.5 .5m0 -.5l-.5 .5`;
}

// The side of a cell in pixels with which the largest of these grids takes about `room` pixels.
function cellFor(room, ...texts) {
  const longest = Math.max(...texts.filter(Boolean).flatMap(sizeOf));
  return Math.max(3, Math.min(28, Math.floor(room / longest)));
}

// The same for each of several grids beside each other: cells of one size, unless a grid could not be read then.
const READABLE = 12;

function cellsFor(room, ...texts) {
  const shared = cellFor(room, ...texts);
  return (text) => Math.max(shared, Math.min(READABLE, cellFor(room, text)));
}

// A drawing of a grid; `marked` cells get a cross. Without a label it is decoration that a screen reader skips.
function drawGrid(text, { cell = 16, label = null, marked = [], digits = false } = {}) {
  const rows = text.split("/"), height = rows.length, width = rows[0].length;
  const svg = makeSvg("svg", {
    class: "grid", viewBox: `0 0 ${width} ${height}`, width: width * cell, height: height * cell,
    ...(label === null ? { "aria-hidden": "true" } : { role: "img", "aria-label": label }),
  });
  for (const [symbol, path] of symbolPaths(rows)) {
    const look = symbol in DATA.palette ? { fill: DATA.palette[symbol] } : { class: "nocolour" };
    svg.append(makeSvg("path", { d: path, ...look }));
  }
  const dots = cells(rows).map(([symbol, r, c]) => symbol === "e" ? `M${c + 0.5} ${r + 0.5}h0` : "").join("");
  if (dots) svg.append(makeSvg("path", { class: "eos", d: dots }));
  if (cell >= 6) svg.append(makeSvg("path", { class: "lines", d: gridLines(height, width) }));
  if (digits && cell >= 8) svg.append(...cells(rows).map(digitText));
  if (marked.length) {
    const path = marked.map(cross).join("");
    svg.append(makeSvg("path", { class: "cross under", d: path }), makeSvg("path", { class: "cross", d: path }));
  }
  return svg;
}

function gridLines(height, width) {
  let path = "";
  for (let r = 1; r < height; r++) path += `M0 ${r}h${width}`;
  for (let c = 1; c < width; c++) path += `M${c} 0v${height}`;
  return path;
}

const DARK_SYMBOLS = "01269"; // colours on which a light digit reads better

function digitText([symbol, r, c]) {
  if (!(symbol in DATA.palette)) return "";
  const tone = DARK_SYMBOLS.includes(symbol) ? "digit light" : "digit";
  return makeSvg("text", { class: tone, x: c + 0.5, y: r + 0.5 }, symbol);
}

// A grid with its caption, and words for those who cannot see it.
function gridFigure(caption, text, options = {}) {
  const { note = null, tone = "", ...drawing } = options;
  return make("figure", { class: "gridfigure " + tone },
    make("figcaption", {}, make("b", {}, caption), " ", make("span", { class: "size" }, sizeText(text))),
    drawGrid(text, { label: `${caption}, ${inWords(text)}`, ...drawing }),
    note === null ? null : make("p", { class: "note" }, note));
}
