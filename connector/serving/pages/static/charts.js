// Draws a query's past over time, with uPlot. Without this script, the table of checkpoints has the same numbers.
"use strict";
(() => {
  const HEIGHT = 150;
  const STEPS = ["preparing", "deciding", "committing"];
  const SIGNS = { completed: "✓", open: "○", failed: "✗", restart: "↻" };
  let drawn = [];
  let events = [];
  let span = [0, 1];

  const color = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = (value) => (value == null ? "-" : value.toLocaleString());
  const seconds = (value) => (value == null ? "-" : `${value < 10 ? value.toFixed(2) : Math.round(value)} s`);
  const compact = (plot, values) => values.map((value) => Intl.NumberFormat([], { notation: "compact" }).format(value));
  const axes = (values) => [
    { stroke: color("--faint"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line") } },
    { stroke: color("--faint"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, size: 104, values },
  ];
  // All charts show the same time, until someone zooms.
  const x = { range: (plot, low, high) => (plot.data[0].length < 2 || (low === plot.data[0][0] && high === plot.data[0].at(-1)) ? span : [low, high]) };
  const fromZero = { x, y: { range: (plot, low, high) => [0, high > 0 ? high * 1.05 : 1] } };
  const bars = uPlot.paths.bars({ size: [0.8, 24], align: -1 });

  function draw(box, title, data, options) {
    const figure = box.appendChild(document.createElement("figure"));
    figure.appendChild(document.createElement("figcaption")).textContent = title;
    const plot = new uPlot(
      { width: box.clientWidth, height: HEIGHT, cursor: { sync: { key: "query" }, drag: { x: true, y: false } }, ...options },
      data,
      figure,
    );
    plot.root.setAttribute("role", "img");
    plot.root.setAttribute("aria-label", `${title}. The table of checkpoints has the numbers.`);
    drawn.push(plot);
    return plot;
  }

  // A bar is drawn from 0: so the longest comes first, and each shorter one covers its lower part.
  function stacked(found) {
    const sums = STEPS.map((step, at) =>
      found.time.map((_, index) => STEPS.slice(0, at + 1).reduce((sum, each) => sum + (found[each][index] ?? 0), 0)));
    return [found.time, ...sums.reverse()];
  }

  // One table of numbers for each chart: the times come first, then one list for each series.
  function tables({ events, kinds, checkpoints, lag }) {
    const row = (kind, at) => events.map((event) => (event.kind === kind ? kinds.length - at : null));
    return [
      [events.map((event) => event.time), ...kinds.map(row)],
      stacked(checkpoints),
      [checkpoints.time, checkpoints.rate],
      [lag.time, ...Object.values(lag.topics)],
    ];
  }

  // Keep what the charts' hooks need: they run while a chart is made.
  function remember(data) {
    events = data.events;
    const times = [...events.map((event) => event.time), ...data.lag.time];
    const [first, last] = [Math.min(...times), Math.max(...times)];
    const beside = Math.max(1, (last - first) / 50);
    span = [first - beside, last + beside];
  }

  function say(plot) {
    const event = plot.cursor.idx == null ? null : events[plot.cursor.idx];
    document.getElementById("said").textContent = event ? event.said : "Drag to zoom, double-click to see everything, click an event to open it.";
  }

  function open(box, plot) {
    const event = plot.cursor.idx == null ? null : events[plot.cursor.idx];
    if (event && event.id !== null && !plot.select.width) location.href = `${box.dataset.query}/checkpoints/${event.id}`;
  }

  function create(box, data) {
    const kinds = data.kinds;
    const [timed, lasted, read, behind] = tables(data);
    const timeline = draw(box, "Checkpoints", timed, {
      legend: { show: false },
      hooks: { setCursor: [say] },
      axes: axes((plot, values) => values.map((value) => (kinds[kinds.length - value] ? `${SIGNS[kinds[kinds.length - value]]} ${kinds[kinds.length - value]}` : ""))).map(
        (axis, at) => (at ? { ...axis, splits: () => kinds.map((_, index) => kinds.length - index) } : axis)),
      scales: { x, y: { range: [0.5, kinds.length + 0.5] } },
      series: [{}, ...kinds.map((kind) => ({
        label: kind, paths: () => null, points: { show: true, size: 9, width: 1, stroke: color(`--${kind}`), fill: color(`--${kind}`) },
      }))],
    });
    timeline.over.addEventListener("click", () => open(box, timeline));
    const said = box.appendChild(document.createElement("p"));
    said.id = "said";
    say(timeline);
    draw(box, "Duration", lasted, {
      axes: axes((plot, values) => values.map(seconds)),
      scales: fromZero,
      series: [{ label: "at" }, ...[...STEPS].reverse().map((step) => ({
        label: step, paths: bars, points: { show: false }, width: 0, fill: color(`--${step}`), stroke: color(`--${step}`),
        value: (plot, sum, series, index) => seconds(index == null ? null : plot.found[step][index]),
      }))],
    }).found = data.checkpoints;
    draw(box, "Rows per second", read, {
      axes: axes(compact),
      scales: fromZero,
      series: [{ label: "at" }, { label: "rows per second", stroke: color("--committing"), width: 2, value: (plot, value) => number(value) }],
    });
    const topics = Object.keys(data.lag.topics);
    if (topics.length) {
      draw(box, "Lag in offsets, as the brokers have answered in the last hours", behind, {
        axes: axes(compact),
        scales: fromZero,
        series: [{ label: "at" }, ...topics.map((topic, at) => ({
          label: topic, stroke: color(at % 2 ? "--deciding" : "--committing"), width: 2, value: (plot, value) => number(value),
        }))],
      });
    }
    box.dataset.topics = topics.join(",");
  }

  async function update() {
    const box = document.getElementById("charts");
    if (!box) return;
    const answer = await fetch(`${box.dataset.query}/series`);
    if (!answer.ok) return;
    const data = await answer.json();
    if (!data.events.length) return;
    remember(data);
    if (!box.children.length || box.dataset.topics !== Object.keys(data.lag.topics).join(",")) {
      drawn.forEach((plot) => plot.destroy());
      drawn = [];
      box.replaceChildren();
      create(box, data);
      return;
    }
    const news = tables(data);
    drawn[1].found = data.checkpoints;
    drawn.forEach((plot, at) => {
      const { min, max } = plot.scales.x;
      const whole = plot.data[0].length < 2 || (min <= plot.data[0][0] && max >= plot.data[0].at(-1));
      plot.setData(news[at], whole);
      if (!whole) plot.redraw();
    });
  }

  document.addEventListener("refreshed", update);
  addEventListener("resize", () => {
    const box = document.getElementById("charts");
    if (box) drawn.forEach((plot) => plot.setSize({ width: box.clientWidth, height: HEIGHT }));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((plot) => plot.redraw()));
  update();
})();
