// Elements and texts. Nothing on a page is made from HTML: texts become text nodes.

const svgSpace = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    } else if (value === true) {
      node.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      node.setAttribute(name, String(value));
    }
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) node.append(child);
  }
  return node;
}

// el("p", {class: "note"}, "text", otherElement, ...). `on` holds handlers; null children are left
// out.
function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svgEl(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(svgSpace, tag), attributes, children);
}

let lastId = 0;
function newId() {
  return `n${++lastId}`;
}

// Text from a corpus stands in its own direction and does not turn round what is beside it.
function corpusText(text, className = "corpus") {
  return el("bdi", {class: className}, text);
}

// Opens every folded block around a node.
function unfold(node) {
  for (let at = node.parentElement; at; at = at.parentElement) {
    if (at.tagName === "DETAILS") at.open = true;
  }
}

const calm = matchMedia("(prefers-reduced-motion: reduce)");
function bringIntoView(node) {
  node.scrollIntoView({block: "center", behavior: calm.matches ? "auto" : "smooth"});
}
