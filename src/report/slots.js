// From a token to the slots that it read, from there to the text that wrote them, and back.

// name -> {block, nodes}: where the tokens of a text stand.
const textsOnPage = new Map();
// name -> Memory
const memoriesOnPage = new Map();

class Memory {
  constructor() {
    this.slots = new Map();    // by key
    this.writers = new Map();  // by text and position: [{slot, write}]
  }

  add(slot, textName) {
    if (this.slots.has(slot.key)) return;  // another text brought it
    this.slots.set(slot.key, slot);
    for (const write of slot.writes) {
      write.text ??= textName;
      const key = `${write.position} ${write.text}`;
      if (!this.writers.has(key)) this.writers.set(key, []);
      this.writers.get(key).push({slot, write});
    }
  }

  wrote(textName, position) {
    return this.writers.get(`${position} ${textName}`) ?? [];
  }
}

// Must be done for all blocks before any is drawn: an answer may bring the slots of a text above
// it.
function gatherSlots(blocks) {
  for (const block of blocks) {
    if (block.kind === "details") gatherSlots(block.blocks);
    if (block.kind !== "tokens") continue;
    if (!textsOnPage.has(block.name)) textsOnPage.set(block.name, {block, nodes: []});
    if (!memoriesOnPage.has(block.memory)) memoriesOnPage.set(block.memory, new Memory());
    for (const slot of block.slots) memoriesOnPage.get(block.memory).add(slot, block.name);
  }
}

// Shows the token that a write came from.
function jumpTo(node) {
  document.querySelector(".token.lit")?.classList.remove("lit");
  unfold(node);
  node.classList.add("lit");
  node.focus({preventScroll: true});
  bringIntoView(node);
}

// A few words of a text, on one line.
function pieceOfText(text = "") {
  return el("bdi", {}, text === "" ? null : tokenText(text, true));
}

function writeNode(write, token, isOwn) {
  const text = textsOnPage.get(write.text);
  const target = text?.block.tokens[write.position - text.block.first];
  const place = formatNumber(write.position);
  const isHit = write.target_id !== undefined && write.target_id === token.needs;
  return el(
      "li", {class: isOwn ? "write own" : "write"},
      target ?
          el("button", {
            type: "button",
            class: "jump",
            title: "show where this was written",
            on: {click: () => jumpTo(text.nodes[write.position - text.block.first])}
          },
             `at ${place}`) :
          el("span", {class: "quiet"}, write.position >= 0 ? `at ${place}` : "at an unknown place"),
      el("span", {class: "around"}, pieceOfText(write.before),
         el("mark", {}, pieceOfText(write.query)), pieceOfText(write.after)),
      el("span", {class: "target"}, "→ ", pieceOfText(write.target)),
      isHit ? el("strong", {class: "hit"}, "HIT") : null,
      el("span", {class: "quiet"}, `strength ${formatNumber(toNumber(write.strength))}`));
}

// `facts` stand beside its key; `own` is the write that the panel's token made, or null.
function slotNode(key, slot, facts, token, own) {
  const count = slot && slot.count >= 0 ? `${formatNumber(slot.count)} writes in all` : null;
  return el(
      "section", {class: "slot", "data-slot": key},
      el("h4", {}, `slot ${key}`,
         el("span", {class: "quiet"}, [facts, count].filter(Boolean).join(", "))),
      slot && slot.writes.length > 0 ?
          el("ol", {class: "writes"},
             slot.writes.map((write) => writeNode(write, token, write === own))) :
          el("p", {class: "quiet"}, "no write is known"));
}

const slotsAtFirst = 12;

// A list that begins short.
function slotList(title, items, make) {
  if (items.length === 0) return null;
  const list = el("div", {class: "slots"}, items.slice(0, slotsAtFirst).map(make));
  const rest = items.slice(slotsAtFirst);
  const more = rest.length === 0 ? null :
                                   el("button", {
                                     type: "button",
                                     on: {
                                       click() {
                                         list.append(...rest.map(make));
                                         more.remove();
                                       }
                                     }
                                   },
                                      `show ${rest.length} more`);
  return el("section", {}, el("h3", {}, title), list, more);
}

function panelContent(block, i, memory, close) {
  const token = block.tokens[i];
  const position = block.first + i;
  const reads = [];
  for (let r = 0; r < (token.r ?? []).length; r += 2) {
    reads.push({key: block.keys[token.r[r]], weight: toNumber(token.r[r + 1])});
  }
  reads.sort((a, b) => b.weight - a.weight);
  const writes = memory.wrote(block.name, position);
  const count = (n) => n === 1 ? "1 slot" : `${formatNumber(n)} slots`;
  return [
    el("header", {}, el("span", {class: "token-name"}, tokenText(token.t)),
       token.mark ? el("strong", {class: "hit"}, token.mark) : null,
       el("span", {class: "quiet"}, tokenFacts(block, i).join(" · ")),
       el("button", {type: "button", class: "close", "aria-label": "close", on: {click: close}},
          "×")),
    slotList(
        `Reads ${count(reads.length)}`, reads,
        ({key, weight}) =>
            slotNode(key, memory.slots.get(key), `weight ${formatNumber(weight)}`, token, null)),
    slotList(
        `Wrote into ${count(writes.length)}`, writes,
        ({slot, write}) => slotNode(slot.key, slot, null, token, write)),
    reads.length + writes.length === 0 ?
        el("p", {class: "quiet"}, "It neither read a slot nor made a write that is still known.") :
        null
  ].filter(Boolean);
}
