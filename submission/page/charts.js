// The overview: scores, where the right grids went, calibration of votes, what solving said about itself.

const OUTCOMES = {
  first: "solved by attempt 1",
  second: "solved by attempt 2",
  ranked: "predicted, but not handed in",
  missed: "not solved",
  unknown: "output not known",
};

function overview() {
  const panels = [...calibrationCharts(), runPanel()].filter(Boolean);
  const row = panels.length ? make("div", { class: "panels" }, panels) : null;
  document.getElementById("overview").append(...[remarks(), scoreTiles(), outcomeBar(), row].filter(Boolean));
}

function remarks() {
  if (!DATA.remarks.length) return null;
  const alarming = DATA.remarks.some((line) => /^(LEAK|CONTAMINATED)/.test(line));
  return make("div", { class: alarming ? "notice alarm" : "notice" }, DATA.remarks.map((line) => make("p", {}, line)));
}

function scoreTiles() {
  if (!DATA.scores) return make("p", { class: "notice" }, "The true outputs are not known here, so nothing is scored.");
  const { outputs, task_mean: mean, tasks } = DATA.scores;
  const tile = (name, figure, detail) => make("div", { class: "tile" },
    make("h2", {}, name), make("p", { class: "figure" }, figure), make("p", { class: "detail" }, detail));
  return make("div", { class: "tiles" },
    tile("Outputs", percent(outputs.score, 2), `${outputs.solved} of ${plural(outputs.total, "test output")} solved`),
    tile("Task mean", percent(mean.score, 2), `mean share of solved outputs over ${plural(mean.tasks, "task")}`),
    tile("Tasks", percent(tasks.score, 2), `${tasks.solved} of ${plural(tasks.total, "task")} solved entirely`));
}

function outcomeBar() {
  const total = Object.values(DATA.outcomes).reduce((sum, count) => sum + count, 0);
  const present = Object.keys(OUTCOMES).filter((name) => DATA.outcomes[name]);
  const bar = make("div", { class: "stacked", "aria-hidden": "true" });
  const legend = make("ul", { class: "legend" });
  for (const name of present) {
    const count = DATA.outcomes[name], segment = make("span", { class: "outcome-" + name });
    segment.style.flexGrow = count;
    bar.append(segment);
    legend.append(make("li", {}, make("a", { href: "#status=" + name },
      make("span", { class: "swatch outcome-" + name, "aria-hidden": "true" }),
      OUTCOMES[name], " ", make("b", {}, count.toLocaleString("en")), ` (${percent(count / total)})`)));
  }
  return make("div", { class: "panel" },
    make("h2", {}, `Where the right answers went: ${plural(total, "test output")}`), bar, legend);
}

function calibrationCharts() {
  const found = DATA.calibration;
  if (!found || !found.votes.length) return [];
  return [
    calibrationPanel("Votes, calibrated", "share of the votes for the leading candidate", found.votes),
    calibrationPanel("Halting, calibrated", "mean halting probability of the leading candidate", found.halting)];
}

// Bars: how often the leading candidate is right, by tenths of `axis`; on the diagonal shares are probabilities.
function calibrationPanel(title, axis, bins) {
  const [left, bottom, width, height] = [44, 176, 300, 150];
  const svg = makeSvg("svg", { viewBox: "0 0 372 222", class: "chart", "aria-hidden": "true" });
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const y = bottom - share * height;
    svg.append(makeSvg("path", { class: "rule", d: `M${left} ${y}h${width}` }),
      makeSvg("text", { x: left - 6, y: y + 4, class: "end" }, percent(share)));
  }
  const numbers = [];
  for (const bin of bins.filter((entry) => entry.outputs)) {
    const x = left + bin.from * width + 2, wide = width / bins.length - 4;
    const tall = Math.max(1, (bin.solved / bin.outputs) * height), y = bottom - tall;
    svg.append(makeSvg("rect", { class: "bar", x, y, width: wide, height: tall, rx: 2 }));
    numbers.push(makeSvg("text", { x: x + wide / 2, y: y - 4, class: "middle number" }, bin.outputs));
  }
  svg.append(makeSvg("path", { class: "diagonal", d: `M${left} ${bottom}l${width} ${-height}` }), ...numbers);
  for (const share of [0, 0.5, 1]) {
    svg.append(makeSvg("text", { x: left + share * width, y: bottom + 17, class: "middle" }, percent(share)));
  }
  svg.append(makeSvg("text", { x: left + width / 2, y: bottom + 38, class: "middle" }, axis));
  return make("div", { class: "panel" }, make("h2", {}, title),
    make("p", { class: "detail" }, "How often the leading candidate is right; above each bar the number of outputs."),
    svg, binTable(axis, bins));
}

function binTable(axis, bins) {
  const rows = bins.filter((bin) => bin.outputs).map((bin) => {
    const range = `${percent(bin.from)} to ${percent(bin.to)}`;
    const cells = [range, bin.outputs, bin.solved, percent(bin.solved / bin.outputs)];
    return make("tr", {}, cells.map((cell) => make("td", {}, cell)));
  });
  const names = [axis, "outputs", "right", "share right"].map((name) => make("th", { scope: "col" }, name));
  return make("details", {}, make("summary", {}, "The same as a table"),
    make("table", {}, make("thead", {}, make("tr", {}, names)), make("tbody", {}, rows)));
}

function duration(seconds) {
  const whole = Math.round(seconds), hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${whole % 60} s`;
}

function factRow(name, value) {
  const text = typeof value === "number" ? value.toLocaleString("en", { maximumFractionDigits: 3 }) : String(value);
  return make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, text));
}

// Time by phase, and every other figure that solving left in its summary.
function runPanel() {
  if (!DATA.summary.length && !DATA.phases.length) return null;
  const total = DATA.phases.reduce((sum, [, seconds]) => sum + seconds, 0);
  const shares = DATA.phases.map(([name, seconds]) => [name, `${duration(seconds)} (${percent(seconds / total)})`]);
  const rows = [...shares, ...DATA.summary].map(([name, value]) => factRow(name, value));
  return make("div", { class: "panel" }, make("h2", {}, total ? `The run: ${duration(total)}` : "The run"),
    make("table", { class: "facts" }, make("tbody", {}, rows)));
}
