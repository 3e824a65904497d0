// Curves over x.

const dotsUpTo = 40;    // points of a series that are drawn as dots as well
const denseFrom = 300;  // points from which lines are thin

function curvesFigure(block) {
  const series = block.series.map((s) => ({name: s.name, x: s.x, y: s.y.map(toNumber)}));
  const drawable = (s, i) =>
      Number.isFinite(s.y[i]) && !(block.y.log && s.y[i] <= 0) && !(block.x.log && s.x[i] <= 0);

  let lost = 0, thinned = false;
  block.series.forEach((raw, k) => {
    thinned ||= raw.points > raw.x.length;
    series[k].y.forEach((value, i) => lost += Number.isFinite(value) && !drawable(series[k], i));
  });
  const notes = [];
  if (thinned) notes.push("Long series are thinned; their extremes are kept.");
  if (lost > 0)
    notes.push(`Left out, because the scale is logarithmic: ${formatNumber(lost)} values.`);

  function draw(width, visible) {
    const shown = series.filter((_, k) => visible[k]);
    const xs = [], ys = [];
    for (const s of shown) {
      for (let i = 0; i < s.x.length; ++i) {
        if (drawable(s, i)) xs.push(s.x[i]), ys.push(s.y[i]);
      }
    }
    const [xLow, xHigh] = domainOf(xs, block.x), [yLow, yHigh] = domainOf(ys, block.y);
    const height = Math.round(Math.min(360, Math.max(230, width * 0.45)));
    const {ticks, step} = (block.y.log ? logTicks : linearTicks)(yLow, yHigh, height / 55);
    // A linear axis ends at ticks.
    const bottomTick = block.y.log ? yLow : Math.min(yLow, ticks[0] - (ticks[0] > yLow ? step : 0));
    const topTick =
        block.y.log ? yHigh : Math.max(yHigh, ticks.at(-1) + (ticks.at(-1) < yHigh ? step : 0));
    const all = block.y.log ? {ticks, step} :
                              linearTicks(bottomTick, topTick, (topTick - bottomTick) / step);
    const letters =
        Math.max(...all.ticks.map((tick) => tickText(tick, all.step, block.y.format).length), 1);
    const area =
        {left: letters * letterWidth + 10, right: width - 14, top: 30, bottom: height - 42};
    const x = scaleOf(xLow, xHigh, block.x.log, area.right - area.left);
    const y = scaleOf(bottomTick, topTick, block.y.log, area.bottom - area.top);
    const svg = svgEl("svg");
    yAxis(svg, area, y, all.ticks, all.step, block.y);
    xTicks(svg, area, x, xLow, xHigh);
    drawMarks(svg, area, x, xLow, xHigh);
    series.forEach((s, k) => {
      if (visible[k])
        drawSeries(svg, s, k, (i) => [area.left + x(s.x[i]), area.bottom - y(s.y[i])]);
    });
    return {
      svg,
      hot: hotPoints(area, x, y, visible, [...new Set(xs)].sort((a, b) => a - b)),
      width,
      height
    };
  }

  function xTicks(svg, area, x, low, high) {
    const count = Math.max(2, (area.right - area.left) / 85);
    const {ticks, step} = (block.x.log ? logTicks : linearTicks)(low, high, count);
    for (const tick of ticks) {
      const at = area.left + x(tick);
      const text = tickText(tick, step, block.x.format);
      // A label at the end must not leave the picture.
      const anchor = at + text.length * letterWidth / 2 > area.right + 14 ? "end" : "middle";
      svg.append(
          svgEl("line", {class: "axis", x1: at, x2: at, y1: area.bottom, y2: area.bottom + 4}),
          plotText(text, at, area.bottom + 17, {"text-anchor": anchor}));
    }
    if (block.x.label) {
      svg.append(plotText(
          block.x.label, (area.left + area.right) / 2, area.bottom + 36,
          {"text-anchor": "middle", class: "label"}));
    }
  }

  function drawMarks(svg, area, x, low, high) {
    let free = area.left + block.y.label.length * letterWidth - area.left;
    for (const mark of block.marks) {
      if (!(mark.x >= low && mark.x <= high)) continue;
      const at = area.left + x(mark.x);
      svg.append(svgEl("line", {class: "mark", x1: at, x2: at, y1: area.top, y2: area.bottom}));
      // Names stand where there is room; pointing tells the others.
      const size = mark.label.length * letterWidth;
      if (at + 3 >= free && at + 3 + size <= area.right + 14) {
        svg.append(plotText(mark.label, at + 3, area.top + 9, {class: "mark-label"}));
        free = at + size + 10;
      }
    }
  }

  function drawSeries(svg, s, k, place) {
    let path = "", open = false;
    const dots = [];
    for (let i = 0; i < s.x.length; ++i) {
      // A point between two gaps is a dot: a line to itself with round ends.
      if (!drawable(s, i)) {
        if (open) path += "h0";
        open = false;
        continue;
      }
      const [px, py] = place(i).map((value) => value.toFixed(1));
      path += `${open ? "L" : "M"}${px} ${py}`;
      if (s.x.length <= dotsUpTo) dots.push(svgEl("circle", {cx: px, cy: py, r: 2.6}));
      open = true;
    }
    if (open) path += "h0";
    const density = s.x.length > denseFrom ? " dense" : "";
    svg.append(svgEl(
        "g", {class: seriesClass(k) + density, "data-series": s.name}, svgEl("path", {d: path}),
        dots));
  }

  function hotPoints(area, x, y, visible, xs) {
    const pixels = xs.map((value) => area.left + x(value));
    return {
      count: xs.length,
      nearest(px) {
        if (px < area.left - 12 || px > area.right + 14 || xs.length === 0) return -1;
        const i = firstAtLeast(pixels, px);
        return i > 0 && (i === xs.length || px - pixels[i - 1] < pixels[i] - px) ? i - 1 : i;
      },
      at(index) {
        const at = xs[index], px = pixels[index], lines = [];
        const node = svgEl("g", {}, svgEl("line", {x1: px, x2: px, y1: area.top, y2: area.bottom}));
        let top = area.bottom;
        series.forEach((s, k) => {
          if (!visible[k]) return;
          for (const i of pointsNear(s, at, (value) => Math.abs(area.left + x(value) - px))) {
            const place = s.x[i] === at ? "" : ` (at ${exactNumber(s.x[i])})`;
            lines.push([s.name, hoverNumber(s.y[i], block.y.format) + place, k]);
            if (!drawable(s, i)) continue;
            const py = area.bottom - y(s.y[i]);
            top = Math.min(top, py);
            node.append(svgEl(
                "circle", {class: `c${k % palette}`, cx: area.left + x(s.x[i]), cy: py, r: 4}));
          }
        });
        for (const mark of block.marks) {
          if (mark.label && Math.abs(area.left + x(mark.x) - px) <= 3)
            lines.push([mark.label, "", null]);
        }
        return {x: px, y: top, title: `${block.x.label || "x"} ${exactNumber(at)}`, lines, node};
      }
    };
  }

  return plotFigure({
    kind: "curves",
    title: block.title,
    summary: curvesSummary(block, series),
    series: series.map((s) => s.name),
    note: notes.join(" "),
    draw,
    swatch: (k) => svgEl(
        "svg", {class: "line-swatch", width: 24, height: 10, "aria-hidden": "true"},
        svgEl("g", {class: seriesClass(k)}, svgEl("path", {d: "M1 5H23"}))),
    numbers: () => curvesNumbers(block, series)
  });
}

// The points of a series at x, or the one closest to it if that is close on the screen: series need
// not have the same x.
function pointsNear(s, at, distance) {
  const first = firstAtLeast(s.x, at), found = [];
  for (let i = first; s.x[i] === at; ++i) found.push(i);
  if (found.length > 0) return found;
  const sides = [first - 1, first].filter((i) => i in s.x && distance(s.x[i]) <= 6);
  sides.sort((i, j) => distance(s.x[i]) - distance(s.x[j]));
  return sides.slice(0, 1);
}

// The first index whose value is at least `value`; the length if there is none.
function firstAtLeast(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

function curvesSummary(block, series) {
  const ends = series.map((s) => {
    const known = s.y.filter(Number.isFinite);
    return known.length === 0 ?
        `${s.name}: no values` :
        `${s.name}: from ${formatNumber(known[0])} to ${formatNumber(known.at(-1))}`;
  });
  return `Curves of ${block.y.label || "y"} over ${block.x.label || "x"}. ${ends.join("; ")}.`;
}

const numberRows = 1000;  // in the table under a plot

function curvesNumbers(block, series) {
  const xs = [...new Set(series.flatMap((s) => s.x))].sort((a, b) => a - b);
  const every = Math.ceil(xs.length / numberRows);
  const chosen = xs.filter((_, i) => i % every === 0 || i === xs.length - 1);
  const maps = series.map((s) => new Map(s.x.map((x, i) => [x, s.y[i]])));
  return {
    caption: every > 1 ? `Every ${every}th of ${formatNumber(xs.length)} rows` : "",
    columns: [
      {name: block.x.label || "x", format: block.x.format, sortable: false},
      ...series.map((s) => ({name: s.name, format: block.y.format, sortable: false}))
    ],
    rows: chosen.map((x) => [{n: x}, ...maps.map((map) => map.has(x) ? {n: map.get(x)} : null)])
  };
}
