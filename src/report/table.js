// Tables, settings, and trees of JSON.

function isNumberCell(cell) {
  return cell !== null && typeof cell === "object";
}

function cellText(cell, format) {
  if (cell === null) return "–";
  return isNumberCell(cell) ? formatNumber(toNumber(cell.n), format) : cell;
}

// Numbers first, by size; then texts; then empty cells, whichever way it goes.
function compareCells(a, b, descending) {
  const rank = (cell) => cell === null ? 2 : isNumberCell(cell) ? 0 : 1;
  if (rank(a) !== rank(b) || a === null) return rank(a) - rank(b);
  let order;
  if (isNumberCell(a)) {
    const [x, y] = [toNumber(a.n), toNumber(b.n)];
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
    order = x < y ? -1 : x > y ? 1 : 0;
  } else {
    order = a.localeCompare(b, "en", {numeric: true});
  }
  return descending ? -order : order;
}

// {caption, columns: [{name, format, sortable}], rows}; a cell is null, a text or {n: number}.
function tableNode(block) {
  const numeric = block.columns.map((_, c) => {
    const filled = block.rows.map((row) => row[c]).filter((cell) => cell !== null);
    return filled.length > 0 && filled.every(isNumberCell);
  });
  const body = el("tbody");
  const lines = block.rows.map(
      (row) => el("tr", {}, row.map((cell, c) => {
        const attributes = {class: numeric[c] ? "number" : "text"};
        if (isNumberCell(cell)) attributes.title = exactNumber(toNumber(cell.n));
        return el(
            c === 0 ? "th" : "td", c === 0 ? {...attributes, scope: "row"} : attributes,
            isNumberCell(cell) || cell === null ? cellText(cell, block.columns[c].format) :
                                                  corpusText(cell));
      })));
  body.append(...lines);
  const heads = block.columns.map((column, c) => {
    const attributes = {scope: "col", class: numeric[c] ? "number" : "text"};
    if (!column.sortable || block.rows.length < 2) return el("th", attributes, column.name);
    return el(
        "th", attributes,
        el("button", {type: "button", class: "sort", on: {click: () => sortBy(c)}}, column.name));
  });
  function sortBy(c) {
    const descending = heads[c].getAttribute("aria-sort") === "ascending";
    for (const head of heads) head.removeAttribute("aria-sort");
    heads[c].setAttribute("aria-sort", descending ? "descending" : "ascending");
    const order = lines.map((_, i) => i);
    order.sort((i, j) => compareCells(block.rows[i][c], block.rows[j][c], descending) || i - j);
    body.append(...order.map((i) => lines[i]));
  }
  return el(
      "div", {class: "scroll", tabindex: 0, role: "group", "aria-label": block.caption || "table"},
      el("table", {}, block.caption ? el("caption", {}, block.caption) : null,
         el("thead", {}, el("tr", {}, heads)), body));
}

function settingsNode(block) {
  return el(
      "div", {class: "settings"}, block.caption ? el("p", {class: "caption"}, block.caption) : null,
      el("dl", {},
         block.entries.map(
             ([key, value]) =>
                 el("div", {}, el("dt", {}, key), el("dd", {}, corpusText(cellText(value)))))));
}

const treeChildren = 500;  // shown of one node

function treeNode(value, key) {
  const name = key === null ? null : el("span", {class: "key"}, `${key}: `);
  if (value === null || typeof value !== "object") {
    const text = typeof value === "number" ? exactNumber(value) : String(value);
    return el("li", {}, name, corpusText(text));
  }
  const entries = Object.entries(value);
  const size = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  const list = el("ul", {class: "tree"});
  const details = el("details", {}, el("summary", {}, name, size), list);
  // Made when it is opened: a large file has more nodes than anybody opens.
  details.addEventListener("toggle", () => {
    if (list.childElementCount > 0) return;
    list.append(...entries.slice(0, treeChildren).map(([k, v]) => treeNode(v, k)));
    const more = entries.length - treeChildren;
    if (more > 0) list.append(el("li", {class: "quiet"}, `and ${formatNumber(more)} more`));
  });
  return el("li", {}, details);
}

function treeBlock(block) {
  const root = treeNode(block.value, block.title || null);
  const details = root.querySelector("details");
  if (details) details.open = true;
  return el("ul", {class: "tree"}, root);
}
