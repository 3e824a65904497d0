// What all plots share: the figure with its legend, tooltip and numbers; pointer and keyboard.

const letterWidth = 7.2;  // of the 12 px type in plots, about
const palette = 7;        // colours in page.css, then dashes begin

// Colours are mixed by the style sheet's variables, so that they follow light, dark and print.
function sequentialColor(t) {
  const s = Math.min(1, Math.max(0, t)) * 2;
  return s <= 1 ? mix("--seq-0", "--seq-1", s) : mix("--seq-1", "--seq-2", s - 1);
}

// t from -1 to 1.
function divergingColor(t) {
  const s = Math.min(1, Math.max(-1, t));
  return mix("--div-mid", s < 0 ? "--div-low" : "--div-high", Math.abs(s));
}

function mix(from, to, share) {
  return `color-mix(in oklab, var(${to}) ${(share * 100).toFixed(1)}%, var(${from}))`;
}

function seriesClass(index) {
  return `series c${index % palette} dash${Math.floor(index / palette) % 3}`;
}

// A position on an axis of `length` pixels. `low` and `high` differ.
function scaleOf(low, high, log, length) {
  const f = log ? Math.log10 : (value) => value;
  const [a, b] = [f(low), f(high)];
  return (value) => (f(value) - a) / (b - a) * length;
}

// Where an axis begins and ends for these values (finite; above 0 if it is logarithmic).
function domainOf(values, axis) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (axis.low !== null && (!axis.log || axis.low > 0)) low = Math.min(low, toNumber(axis.low));
  if (axis.high !== null && (!axis.log || axis.high > 0))
    high = Math.max(high, toNumber(axis.high));
  if (low > high) [low, high] = axis.log ? [1, 10] : [0, 1];
  if (low === high) {
    const room = axis.log ? 0 : Math.abs(low) * 0.1 || 1;
    [low, high] = axis.log ? [low / 2, high * 2] : [low - room, high + room];
  }
  return [low, high];
}

function plotText(text, x, y, attributes = {}) {
  return svgEl("text", {x: x.toFixed(1), y: y.toFixed(1), ...attributes}, text);
}

function shortened(text, letters) {
  return text.length <= letters ? text : `${text.slice(0, Math.max(1, letters - 1))}…`;
}

function yAxis(svg, area, y, ticks, step, axis) {
  for (const tick of ticks) {
    const at = area.bottom - y(tick);
    svg.append(
        svgEl("line", {class: "grid", x1: area.left, x2: area.right, y1: at, y2: at}),
        plotText(tickText(tick, step, axis.format), area.left - 6, at + 4, {"text-anchor": "end"}));
  }
  svg.append(svgEl(
      "line", {class: "axis", x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom}));
  if (axis.label) svg.append(plotText(axis.label, 0, 12, {class: "label"}));
}

// A figure for a plot. `plot` has
//   title, summary, series (names; empty: no legend), numbers() (a table block), note
//   draw(width, visible): {svg, hot}, again whenever the width or the visible series change
// and `hot` is what can be pointed at: count, stride (for up and down), nearest(x, y) with an index
// or -1, and at(index): {x, y, title, lines: [[name, value, series or null]], node}.
function plotFigure(plot) {
  const visible = plot.series.map(() => true);
  const caption = el("figcaption", {id: newId()}, plot.title);
  const summary = el("p", {class: "unseen", id: newId()}, plot.summary);
  const tip = el("div", {class: "tip", role: "status", hidden: true});
  const canvas = el("div", {class: "canvas"});
  const wrap = el("div", {class: "wrap"}, canvas, tip);
  let hot = null, current = -1, width = 0, svg = null;

  function redraw() {
    hide();
    const drawn = plot.draw(width, visible);
    ({svg, hot} = drawn);
    svg.setAttribute("viewBox", `0 0 ${drawn.width} ${drawn.height}`);
    svg.setAttribute("width", drawn.width);
    svg.setAttribute("height", drawn.height);
    svg.setAttribute("role", "img");
    svg.setAttribute("tabindex", "0");
    svg.setAttribute("aria-labelledby", caption.id);
    svg.setAttribute("aria-describedby", summary.id);
    canvas.replaceChildren(svg);
  }

  function hide() {
    current = -1;
    tip.hidden = true;
    canvas.querySelector(".pointed")?.remove();
  }

  function show(index) {
    if (index === current) return;
    hide();
    current = index;
    const {x, y, title, lines, node} = hot.at(index);
    node.classList.add("pointed");
    svg.append(node);
    tip.replaceChildren(
        el("div", {class: "tip-title"}, title),
        ...lines.map(
            ([name, value, series]) =>
                el("div", {class: "tip-line"},
                   series === null ? null : el("span", {class: `swatch c${series % palette}`}),
                   el("span", {class: "tip-name"}, corpusText(name)),
                   el("span", {class: "tip-value"}, value))));
    tip.hidden = false;
    const left = x - canvas.scrollLeft;
    const room = wrap.clientWidth - tip.offsetWidth;
    const beside = left + 14 <= room ? left + 14 : left - tip.offsetWidth - 14;
    tip.style.left = `${Math.max(0, Math.min(room, beside))}px`;
    tip.style.top = `${Math.max(0, y - tip.offsetHeight / 2)}px`;
  }

  function point(event) {
    const box = svg.getBoundingClientRect();
    const index = hot.nearest(event.clientX - box.left, event.clientY - box.top);
    if (index < 0)
      hide();
    else
      show(index);
  }
  canvas.addEventListener("pointermove", point);
  canvas.addEventListener("pointerdown", point);
  canvas.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") hide();
  });
  canvas.addEventListener("focusout", hide);
  canvas.addEventListener("keydown", (event) => {
    if (hot.count === 0) return;
    const stride = hot.stride ?? 10;
    const steps = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -stride, ArrowDown: stride};
    if (event.key === "Escape") return hide();
    let next = current + (steps[event.key] ?? 0);
    if (event.key === "Home")
      next = 0;
    else if (event.key === "End")
      next = hot.count - 1;
    else if (!(event.key in steps))
      return;
    event.preventDefault();
    show(current < 0 ? 0 : Math.max(0, Math.min(hot.count - 1, next)));
  });

  new ResizeObserver(() => {
    // Hidden blocks have no width; the paper's is not drawn for: it scales.
    if (canvas.clientWidth > 0 && canvas.clientWidth !== width && !matchMedia("print").matches) {
      width = canvas.clientWidth;
      redraw();
    }
  }).observe(canvas);

  const legend = plot.series.length < 2 ?
      null :
      el("div", {class: "legend"},
         plot.series.map(
             (name, i) =>
                 el("button", {
                   type: "button",
                   "aria-pressed": "true",
                   on: {
                     click(event) {
                       visible[i] = !visible[i];
                       event.currentTarget.setAttribute("aria-pressed", String(visible[i]));
                       redraw();
                     }
                   }
                 },
                    plot.swatch(i), corpusText(name))));
  return el(
      "figure", {class: `plot ${plot.kind}`}, caption, legend, plot.key ?? null, wrap, summary,
      plot.note ? el("p", {class: "quiet"}, plot.note) : null, numbersNode(plot));
}

function numbersNode(plot) {
  const details = el("details", {class: "numbers"}, el("summary", {}, "Show the numbers"));
  details.addEventListener("toggle", () => {
    if (details.childElementCount === 1) details.append(tableNode(plot.numbers()));
  });
  return details;
}
