// A text as tokens, coloured by strength, with the points where fast weights were updated.

// Characters that one cannot see or that would move others about are shown as signs.
const signOf = new Map([["\n", "↵"], ["\t", "→"], ["\r", "␍"]]);
const unseen = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/u;

function unseenSign(letter) {
  return signOf.get(letter) ??
      `U+${letter.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
}

// The nodes of a token's text. Signs come from the style sheet and are not copied. `flat`: on one
// line.
function tokenText(text, flat = false) {
  if (text === "") return [el("span", {class: "sign", "data-sign": "∅"})];
  const nodes = [];
  const blank = /^ +$/.test(text);
  let plain = "";
  const flush = () => {
    if (plain) nodes.push(plain);
    plain = "";
  };
  for (const letter of text) {
    if (blank) {
      nodes.push(el("span", {class: "sign space", "data-sign": "·"}, letter));
    } else if (unseen.test(letter)) {
      flush();
      // Line ends and tabs stay what they are; what would turn text round is only named.
      const stays = !flat && (letter === "\n" || letter === "\t");
      nodes.push(
          el("span", {class: "sign", "data-sign": unseenSign(letter)}, stays ? letter : null));
    } else {
      plain += letter;
    }
  }
  flush();
  return nodes;
}

function tokensFigure(block) {
  const {tokens, layers} = block;
  const text = textsOnPage.get(block.name);
  const memory = memoriesOnPage.get(block.memory);
  const marks = [...new Set(tokens.map((token) => token.mark).filter(Boolean))];
  const caption = el("figcaption", {id: newId()}, block.title);
  const flow =
      el("div", {class: "flow", dir: "auto", role: "group", "aria-labelledby": caption.id});
  const panel =
      el("aside", {class: "panel", hidden: true, "aria-label": "token", "aria-live": "polite"});
  const strengthLabel = block.strength_label || "strength";

  const nodes = tokens.map((token, i) => {
    const position = block.first + i;
    const node =
        el("span", {class: "token", tabindex: -1, "data-position": position}, tokenText(token.t));
    if (token.r) node.classList.add("reads");
    if (memory.wrote(block.name, position).length > 0) node.classList.add("wrote");
    if (token.mark) {
      node.dataset.mark = token.mark;
      node.classList.add("marked", `c${marks.indexOf(token.mark) % palette}`);
    }
    return node;
  });
  // A page may have two texts of one name; writes lead to the first.
  if (text.block === block) text.nodes = nodes;
  const updates = new Map();
  for (const [before, number] of block.updates) {
    updates.set(before, [...(updates.get(before) ?? []), number]);
  }
  for (let i = 0; i <= nodes.length; ++i) {
    for (const number of updates.get(i) ?? []) {
      flow.append(el("span", {
        class: "update",
        "data-number": number,
        role: "img",
        title: `update ${number}`,
        "aria-label": `update ${number}`
      }));
    }
    if (i < nodes.length) flow.append(nodes[i]);
  }

  const share = (value) => (toNumber(value) - block.low) / (block.high - block.low || 1);
  const known = (token, layer) =>
      token.s !== undefined && Number.isFinite(toNumber(token.s[layer]));
  const stripHeight = 5;  // as in page.css

  // `layer` is an index, or "all" for a strip for each layer under the text.
  function color(layer) {
    flow.classList.toggle("strips", layer === "all");
    flow.style.setProperty("--layers", layers.length);
    nodes.forEach((node, i) => {
      const token = tokens[i];
      node.classList.toggle("shaded", layer !== "all" && known(token, layer));
      if (layer === "all") {
        // From the bottom up: the last layer is the lowest strip.
        const strips = layers.map((_, l) => layers.length - 1 - l).map((l, row) => {
          const paint = known(token, l) ? sequentialColor(share(token.s[l])) : "transparent";
          return `${paint} ${row * stripHeight}px ${(row + 1) * stripHeight}px`;
        });
        node.style.setProperty(
            "--strips", `linear-gradient(to top, ${strips.join(", ")}, transparent 0)`);
      } else if (known(token, layer)) {
        node.style.setProperty("--cell", sequentialColor(share(token.s[layer])));
      }
    });
  }

  let controls = null;
  if (layers.length > 0) {
    const shown = el("span", {class: "print-only"}, layers[0]);
    const choice =
        el("select", {
          "aria-label": `${strengthLabel} of`,
          on: {
            change() {
              color(choice.value === "all" ? "all" : Number(choice.value));
              shown.textContent = choice.value === "all" ? layers.join(", ") : layers[choice.value];
            }
          }
        },
           layers.map((name, l) => el("option", {value: l}, name)),
           layers.length > 1 ? el("option", {value: "all"}, "all layers, top to bottom") : null);
    controls =
        el("div", {class: "controls"}, layers.length > 1 ? choice : null, shown,
           scaleKey(strengthLabel, false, [block.low, block.high].map((v) => formatNumber(v))));
    color(0);
  }

  function open(i) {
    flow.querySelector(".chosen")?.classList.remove("chosen");
    nodes[i].classList.add("chosen");
    panel.replaceChildren(...panelContent(block, i, memory, close));
    panel.hidden = false;
    panel.scrollTop = 0;
  }

  function close() {
    panel.hidden = true;
    const chosen = flow.querySelector(".chosen");
    chosen?.classList.remove("chosen");
    chosen?.focus({preventScroll: true});
  }

  // One token can be reached by Tab, the others from it by arrows.
  let reachable = 0;
  function reach(i, focus) {
    if (nodes.length === 0) return;
    nodes[reachable].tabIndex = -1;
    reachable = Math.max(0, Math.min(nodes.length - 1, i));
    nodes[reachable].tabIndex = 0;
    if (focus) nodes[reachable].focus();
  }
  reach(0, false);
  const indexOf = (event) => {
    const node = event.target.closest(".token");
    return node ? Number(node.dataset.position) - block.first : -1;
  };

  flow.addEventListener("click", (event) => {
    const i = indexOf(event);
    if (i < 0) return;
    reach(i, false);
    open(i);
  });
  flow.addEventListener("focusin", (event) => reach(indexOf(event), false));
  flow.addEventListener("keydown", (event) => {
    const i = indexOf(event);
    if (i < 0) return;
    const moves = {ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: nodes.length - 1};
    if (event.key in moves)
      reach(moves[event.key], true);
    else if (event.key === "Enter" || event.key === " ")
      open(i);
    else if (event.key === "Escape")
      close();
    else
      return;
    event.preventDefault();
  });
  // Hints are made when they are asked for: a text has thousands of tokens.
  flow.addEventListener("pointerover", (event) => {
    const i = indexOf(event);
    if (i >= 0 && !nodes[i].title) nodes[i].title = tokenFacts(block, i).join("\n");
  });
  panel.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
  });

  const hasSlots =
      tokens.some((token) => token.r) || nodes.some((node) => node.classList.contains("wrote"));
  const hint = hasSlots ?
      "Click a token (or reach it with Tab and the arrows, and press Enter) to see its slots." :
      "Click a token to see its numbers.";
  return el(
      "figure", {class: "tokens"}, caption, controls, el("p", {class: "quiet hint"}, hint), flow,
      panel);
}

// What is known of a token, a line each.
function tokenFacts(block, i) {
  const token = block.tokens[i];
  const lines =
      [`position ${formatNumber(block.first + i)}` +
       (token.id === undefined ? "" : `, id ${token.id}`)];
  (token.s ?? [])
      .forEach(
          (value, l) => lines.push(`${block.strength_label || "strength"}, ${block.layers[l]}: ${
              exactNumber(toNumber(value))}`));
  if (token.note) lines.push(token.note);
  return lines;
}
