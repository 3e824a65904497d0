// The page: heading, contents, blocks.

const blockMakers = {
  section: sectionNode,
  paragraph: (block) => el("p", {class: block.note ? "note" : "text"}, corpusText(block.text)),
  settings: settingsNode,
  table: tableNode,
  curves: curvesFigure,
  bars: barsFigure,
  heatmap: heatMapFigure,
  tokens: tokensFigure,
  tree: treeBlock,
  details: (block) =>
      el("details", {class: "block", open: block.open}, el("summary", {}, block.summary),
         el("div", {class: "inside"}, block.blocks.map(blockNode)))
};

// A block that cannot be drawn must not take the others with it.
function blockNode(block) {
  try {
    return blockMakers[block.kind](block);
  } catch (error) {
    console.error(error);
    return el(
        "p", {class: "note"}, `This block (${block.kind}) could not be drawn: ${error.message}`);
  }
}

const sections = [];  // {title, level, id}, in order

function sectionNode(block) {
  const wish = block.anchor ||
      block.title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "section";
  const taken = new Set(["page", "data", ...sections.map((section) => section.id)]);
  let id = wish;
  for (let n = 2; taken.has(id); ++n) id = `${wish}-${n}`;
  sections.push({title: block.title, level: block.level, id});
  return el(
      block.level === 1 ? "h2" : "h3", {id}, block.title,
      el("a", {
        class: "anchor",
        href: `#${encodeURIComponent(id)}`,
        "aria-label": "link to this section"
      },
         "#"));
}

const contentsFrom = 4;  // sections

function contentsNode() {
  if (sections.length < contentsFrom) return null;
  return el(
      "nav", {class: "contents", "aria-label": "contents"},
      el("ul", {},
         sections.map(
             (section) =>
                 el("li", {class: `level${section.level}`},
                    el("a", {href: `#${encodeURIComponent(section.id)}`}, section.title)))));
}

const page = JSON.parse(document.getElementById("data").textContent);
gatherSlots(page.blocks);
const blockNodes = page.blocks.map(blockNode);
fill(document.getElementById("page"), {}, [
  el("header", {class: "top"}, el("h1", {}, page.title),
     page.subtitle ? el("p", {}, corpusText(page.subtitle)) : null),
  contentsNode(), blockNodes, el("footer", {}, `fwpkm ${page.version}`)
]);
// The target of a link was not there yet when the browser looked for it.
if (location.hash)
  document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
