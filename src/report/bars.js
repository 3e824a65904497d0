// Bars: groups of series, side by side or stacked.

function barsFigure(block) {
  const series = block.series.map((s) => ({name: s.name, values: s.values.map(toNumber)}));
  const groups = block.groups;
  const fullName = (group) => group.cluster ? `${group.cluster}, ${group.name}` : group.name;
  const clustered = groups.some((group) => group.cluster);

  // Steps of a scale are shades of one colour.
  function paint(node, k) {
    if (block.ordered) {
      node.setAttribute("class", "shade");
      node.style.setProperty(
          "--cell", sequentialColor(0.08 + 0.92 * k / Math.max(1, series.length - 1)));
    } else {
      node.setAttribute("class", `c${k % palette}`);
    }
    return node;
  }

  // The left edges and the width of groups. Clusters are set apart by half a group.
  function layOut(width, shown, left) {
    const breaks =
        groups.filter((group, g) => g > 0 && clustered && group.cluster !== groups[g - 1].cluster);
    const units = groups.length + breaks.length * 0.6;
    const least = Math.max(block.stacked ? 22 : 10 * Math.max(1, shown) + 8, 22);
    const unit = Math.max(least, Math.min(110, (width - left - 10) / Math.max(1, units)));
    let at = left;
    const starts = groups.map((group, g) => {
      if (g > 0 && clustered && group.cluster !== groups[g - 1].cluster) at += unit * 0.6;
      at += unit;
      return at - unit;
    });
    return {starts, unit, right: at};
  }

  function draw(width, visible) {
    const shown = series.map((_, k) => k).filter((k) => visible[k]);
    const tops = groups
                     .map((_, g) => {
                       const values = shown.map((k) => series[k].values[g]).filter(Number.isFinite);
                       return block.stacked ? [values.reduce((a, b) => a + b, 0)] : values;
                     })
                     .flat();
    const [low, high] = domainOf([0, ...tops], block.y);
    const rough = linearTicks(low, high, 5);
    const bottomTick = rough.step * Math.floor(low / rough.step + 1e-9);
    const topTick = rough.step * Math.ceil(high / rough.step - 1e-9);
    const {ticks, step} = linearTicks(bottomTick, topTick, (topTick - bottomTick) / rough.step);
    const letters = Math.max(...ticks.map((tick) => tickText(tick, step, block.y.format).length));
    const left = letters * letterWidth + 10;
    const place = layOut(width, shown.length, left);
    const longest = Math.max(0, ...groups.map((group) => group.name.length));
    const slanted = longest * letterWidth > place.unit - 4;
    const under = (slanted ? Math.min(longest, 16) * letterWidth * 0.62 + 14 : 20) +
        (clustered ? 20 : 0) + (block.group_label ? 18 : 0);
    const area = {left, right: place.right, top: 30, bottom: 250};
    const height = area.bottom + under + 4;
    const y = scaleOf(bottomTick, topTick, false, area.bottom - area.top);
    const svg = svgEl("svg");
    yAxis(svg, area, y, ticks, step, block.y);
    groups.forEach((_, g) => {
      const inner = place.unit * 0.82, from = place.starts[g] + place.unit * 0.09;
      let sum = 0;
      shown.forEach((k, i) => {
        const value = series[k].values[g];
        if (!Number.isFinite(value)) return;
        const [a, b] = block.stacked ? [sum, sum + value] : [0, value];
        sum += value;
        const size = block.stacked ? inner : inner / shown.length;
        const top = area.bottom - y(Math.max(a, b));
        svg.append(paint(
            svgEl("rect", {
              x: (from + (block.stacked ? 0 : i * size)).toFixed(1),
              y: top.toFixed(1),
              width: Math.max(1, size - (block.stacked ? 0 : 1)).toFixed(1),
              height: (area.bottom - y(Math.min(a, b)) - top).toFixed(1),
              "data-series": k,
              "data-group": g
            }),
            k));
      });
    });
    names(svg, area, place, slanted, height);
    return {
      svg,
      hot: hotGroups(area, place, visible, y),
      width: Math.max(width, place.right + 10),
      height
    };
  }

  function names(svg, area, place, slanted, height) {
    groups.forEach((group, g) => {
      const at = place.starts[g] + place.unit / 2;
      const text = shortened(group.name, slanted ? 16 : 40);
      svg.append(
          slanted ?
              plotText(
                  text, at + 3, area.bottom + 12,
                  {"text-anchor": "end", transform: `rotate(-38 ${at + 3} ${area.bottom + 12})`}) :
              plotText(text, at, area.bottom + 16, {"text-anchor": "middle"}));
    });
    const line = height - 8;
    if (clustered) {
      let from = 0;
      for (let g = 1; g <= groups.length; ++g) {
        if (g < groups.length && groups[g].cluster === groups[from].cluster) continue;
        const [a, b] = [place.starts[from], place.starts[g - 1] + place.unit];
        const text =
            shortened(groups[from].cluster, Math.max(3, Math.floor((b - a) / letterWidth)));
        svg.append(plotText(
            text, (a + b) / 2, line - (block.group_label ? 18 : 0),
            {"text-anchor": "middle", class: "label"}));
        from = g;
      }
    }
    if (block.group_label) {
      svg.append(plotText(
          block.group_label, (area.left + area.right) / 2, line,
          {"text-anchor": "middle", class: "label"}));
    }
  }

  function hotGroups(area, place, visible, y) {
    return {
      count: groups.length,
      nearest(px) {
        return place.starts.findIndex((start) => px >= start && px < start + place.unit);
      },
      at(g) {
        const lines = series
                          .map(
                              (s, k) =>
                                  [s.name, hoverNumber(s.values[g], block.y.format),
                                   block.ordered ? null : k])
                          .filter((_, k) => visible[k]);
        if (block.stacked) lines.reverse();  // as they lie
        const node = svgEl(
            "rect",
            {x: place.starts[g], width: place.unit, y: area.top, height: area.bottom - area.top});
        return {
          x: place.starts[g] + place.unit / 2,
          y: area.top + 60,
          title: fullName(groups[g]),
          lines,
          node
        };
      }
    };
  }

  return plotFigure({
    kind: "bars",
    title: block.title,
    summary: `Bars of ${block.y.label || "values"} for ${groups.map(fullName).join("; ")}.`,
    series: series.map((s) => s.name),
    draw,
    swatch: (k) => svgEl(
        "svg", {width: 12, height: 12, "aria-hidden": "true"},
        paint(svgEl("rect", {width: 12, height: 12}), k)),
    numbers: () => ({
      caption: "",
      columns: [
        {name: block.group_label || "group", format: "", sortable: true},
        ...series.map((s) => ({name: s.name, format: block.y.format, sortable: true}))
      ],
      rows: groups.map((group, g) => [fullName(group), ...series.map((s) => ({n: s.values[g]}))])
    })
  });
}
