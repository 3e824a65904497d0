// Numbers as text, and round numbers for axes. All numbers of a page go through here.

// NaN and infinities come as texts: JSON has none.
const specialNumbers = {
  "NaN": NaN,
  "inf": Infinity,
  "-inf": -Infinity
};
function toNumber(value) {
  return typeof value === "number" ? value : specialNumbers[value] ?? NaN;
}

function grouped(text) {
  const [, sign, whole, rest] = text.match(/^(-?)(\d+)(.*)$/);
  return sign + whole.replace(/\B(?=(\d{3})+$)/g, ",") + rest;
}

function specialText(value) {
  return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "-∞";
}

// "" | "0" | ".3" | ".1%", see cell.h.
function formatNumber(value, format = "") {
  if (!Number.isFinite(value)) return specialText(value);
  if (format === "0") return grouped(value.toFixed(0));
  if (format.endsWith("%")) return `${grouped((value * 100).toFixed(Number(format[1])))}%`;
  if (format.startsWith(".")) return grouped(value.toFixed(Number(format[1])));
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return grouped(value.toFixed(0));
  if (size < 1e-4 || size >= 1e15) return value.toExponential(4).replace(/\.?0*e\+?/, "e");
  const digits = Math.max(0, 4 - Math.floor(Math.log10(size)));
  return grouped(
      value.toFixed(Math.min(digits, 20)).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, ""));
}

// Every digit that the number has.
function exactNumber(value) {
  if (!Number.isFinite(value)) return specialText(value);
  const text = String(value);
  return text.includes("e") ? text.replace("+", "") : grouped(text);
}

// What hovering tells: all digits, and percents beside a share.
function hoverNumber(value, format = "") {
  const exact = exactNumber(value);
  return format.endsWith("%") && Number.isFinite(value) ?
      `${exact} (${formatNumber(value, format)})` :
      exact;
}

// Round numbers from low to high, about `count` of them.
function linearTicks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((unit) => unit * power >= rough * 0.999) ?? 10);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) {
    ticks.push(Number((i * step).toPrecision(12)));
  }
  return {ticks, step};
}

// Powers of ten; with 2 and 5 between them where there is room.
function logTicks(low, high, count) {
  const from = Math.floor(Math.log10(low) + 1e-9), to = Math.ceil(Math.log10(high) - 1e-9);
  if (high / low < 8) return linearTicks(low, high, count);
  const every = Math.max(1, Math.ceil((to - from) / count));
  const units = (to - from) * 3 <= count * 1.5 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let power = from; power <= to; power += every) {
    for (const unit of units) {
      const tick = Number(`${unit}e${power}`);
      if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push(tick);
    }
  }
  return {ticks, step: 0};
}

const largeUnits = [[1e9, "G"], [1e6, "M"]];

// `step` is what ticks are apart; 0 on logarithmic axes.
function tickText(value, step, format) {
  const digits = (gap) => gap > 0 ? Math.max(0, -Math.floor(Math.log10(gap) + 1e-9)) : null;
  if (format.endsWith("%")) {
    const places = digits(step * 100);
    return `${
        places === null ? Number((value * 100).toPrecision(3)) : (value * 100).toFixed(places)}%`;
  }
  for (const [size, letter] of largeUnits) {
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(6))}${letter}`;
  }
  const places = digits(step);
  if (value !== 0 && Math.abs(value) < 1e-4 || places > 6) {
    return value.toExponential(1).replace(/(\.0)?e\+?/, "e");
  }
  return places === null ? formatNumber(value) : grouped(value.toFixed(places));
}
