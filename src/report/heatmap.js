// Heat maps: rows by columns of coloured cells.

function heatMapFigure(block) {
  const values = block.values.map(toNumber);
  const finite = values.filter(Number.isFinite);
  const columns = block.columns.length;
  const center = toNumber(block.center);
  let low = block.low === null ? Math.min(...finite, Infinity) : toNumber(block.low);
  let high = block.high === null ? Math.max(...finite, -Infinity) : toNumber(block.high);
  if (low > high) [low, high] = [0, 1];
  // The farther end sets the scale, so that the same distance from the centre is equally strong.
  const reach = Math.max(Math.abs(low - center), Math.abs(high - center)) || 1;
  if (block.diverging) [low, high] = [center - reach, center + reach];
  const color = block.diverging ? (value) => divergingColor((value - center) / reach) :
                                  (value) => sequentialColor((value - low) / (high - low || 1));
  const texts =
      values.map((value) => Number.isFinite(value) ? formatNumber(value, block.format) : "");
  const widest = Math.max(1, ...texts.map((text) => text.length)) * letterWidth + 8;

  function draw(width) {
    const rowLetters = Math.min(22, Math.max(1, ...block.rows.map((name) => name.length)));
    const left = rowLetters * letterWidth + 10;
    const size = Math.max(14, Math.min(96, (width - left - 4) / Math.max(1, columns)));
    const tall = Math.max(20, Math.min(34, size));
    const longest = Math.max(1, ...block.columns.map((name) => name.length));
    const slanted = longest * letterWidth > size - 4;
    const top = (slanted ? Math.min(longest, 16) * letterWidth * 0.62 + 12 : 20) +
        (block.column_label ? 18 : 0);
    const right = left + size * columns, bottom = top + tall * block.rows.length;
    const svg = svgEl("svg");
    if (block.column_label) svg.append(plotText(block.column_label, left, 12, {class: "label"}));
    if (block.row_label)
      svg.append(plotText(shortened(block.row_label, rowLetters), 0, top - 6, {class: "label"}));
    // Where columns are narrower than a line of type, only some are named.
    const every = Math.ceil(13 / size);
    block.columns.forEach((name, c) => {
      if (c % every !== 0) return;
      const at = left + (c + 0.5) * size;
      const text = shortened(name, slanted ? 16 : 40);
      svg.append(
          slanted ? plotText(text, at, top - 6, {transform: `rotate(-38 ${at} ${top - 6})`}) :
                    plotText(text, at, top - 6, {"text-anchor": "middle"}));
    });
    block.rows.forEach(
        (name, r) => svg.append(plotText(
            shortened(name, rowLetters), left - 6, top + (r + 0.5) * tall + 4,
            {"text-anchor": "end"})));
    const fits = widest <= size;
    values.forEach((value, i) => {
      const [r, c] = [Math.floor(i / columns), i % columns];
      const cell =
          svgEl("g", {class: Number.isFinite(value) ? "cell" : "cell empty", "data-cell": i});
      if (Number.isFinite(value)) cell.style.setProperty("--cell", color(value));
      cell.append(svgEl(
          "rect", {x: left + c * size, y: top + r * tall, width: size - 1, height: tall - 1}));
      if (fits && texts[i]) {
        cell.append(plotText(
            texts[i], left + (c + 0.5) * size, top + (r + 0.5) * tall + 4,
            {"text-anchor": "middle"}));
      }
      svg.append(cell);
    });
    const hot = {
      count: values.length,
      stride: columns,
      nearest(px, py) {
        const [c, r] = [Math.floor((px - left) / size), Math.floor((py - top) / tall)];
        return c >= 0 && c < columns && r >= 0 && r < block.rows.length ? r * columns + c : -1;
      },
      at(i) {
        const [r, c] = [Math.floor(i / columns), i % columns];
        return {
          x: left + (c + 0.5) * size,
          y: top + (r + 0.5) * tall,
          title: `${named(block.row_label, block.rows[r])}, ${
              named(block.column_label, block.columns[c])}`,
          lines: [[block.value_label || "value", hoverNumber(values[i], block.format), null]],
          node: svgEl(
              "rect", {x: left + c * size, y: top + r * tall, width: size - 1, height: tall - 1})
        };
      }
    };
    return {svg, hot, width: Math.max(width, right + 4 + (slanted ? 30 : 0)), height: bottom + 4};
  }

  const ends = block.diverging ? [low, center, high] : [low, high];
  return plotFigure({
    kind: "heatmap",
    title: block.title,
    summary: `${block.rows.length} rows by ${columns} columns of ${
                 block.value_label || "values"}, from ` +
        `${formatNumber(low, block.format)} to ${formatNumber(high, block.format)}.`,
    series: [],
    key: scaleKey(
        block.value_label, block.diverging, ends.map((value) => formatNumber(value, block.format))),
    draw,
    numbers: () => ({
      caption: "",
      columns: [
        {name: block.row_label, format: "", sortable: true},
        ...block.columns.map((name) => ({name, format: block.format, sortable: true}))
      ],
      rows: block.rows.map(
          (name, r) => [name, ...block.columns.map((_, c) => ({n: values[r * columns + c]}))])
    })
  });
}

function named(label, name) {
  return label ? `${label} ${name}` : name;
}

// The legend of a colour scale.
function scaleKey(label, diverging, ends) {
  return el(
      "div", {class: "scale"}, label ? el("span", {}, label) : null,
      el("span", {class: "scale-box"},
         el("span", {class: `scale-bar ${diverging ? "diverging" : "sequential"}`}),
         el("span", {class: "scale-ends"}, ends.map((text) => el("span", {}, text)))));
}
