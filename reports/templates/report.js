// Sorts, searches and filters what the page already shows. Everything works without it; nothing here fetches,
// and no text of a record is ever read as markup: nodes are made one by one and texts are set as texts.
(() => {
  "use strict";
  const STEP = 200;
  const narrow = matchMedia("(max-width: 40rem)");
  const said = JSON.parse(document.getElementById("words").textContent);
  let kept = null;

  // Packed rows are unpacked when somebody first asks for them. A browser of before 2023 cannot, and shows the first.
  const rest = () => {
    kept ??= (async () => {
      const bytes = Uint8Array.from(atob(document.getElementById("rows").textContent), (char) => char.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      return JSON.parse(await new Response(stream).text());
    })();
    return kept;
  };

  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };

  // --- tables

  const UNITS = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, s: 1, ms: 1e-3, "µs": 1e-6, ns: 1e-9 };

  const figure = (text) => {
    const plain = text.trim().replace(/^</, "").replace(/,/g, "");
    const found = /^(-?(?:\d+\.?\d*(?:e[+-]?\d+)?|inf))\s*([^\s(]*)/i.exec(plain);
    if (!found) return NaN;
    const value = /inf/i.test(found[1]) ? Infinity * (found[1][0] === "-" ? -1 : 1) : Number(found[1]);
    const below = text.trim().startsWith("<") ? 0.5 : 1;
    return value * below * (UNITS[found[2]] ?? 1);
  };

  const badge = (status) => {
    const [tone, sign, word] = said[status] ?? ["wait", "–", status];
    const mark = make("span", { "aria-hidden": "true" }, sign);
    return make("span", { class: `badge ${tone}` }, mark, ` ${word}`);
  };

  const line = (words, item, first) => {
    const div = make("div", first ? {} : { class: "minor" });
    if (typeof item === "number") div.append(words[item]);
    else {
      const href = words[item[1]];
      const text = decodeURIComponent(href.slice(3));
      // Python writes such addresses only; anything else stays a text.
      const safe = href.startsWith("../") && !href.includes(":");
      div.append(`${words[item[0]]}: `, safe ? make("a", { href }, text) : text);
    }
    return div;
  };

  class Rows {
    constructor(table) {
      this.table = table;
      this.body = table.tBodies[0];
      this.heads = [...table.tHead.rows[0].cells];
      this.kinds = this.heads.map((head) => head.className);
      this.name = table.dataset.rows;
      this.left = Number(table.dataset.left ?? 0);
      this.shown = this.body.rows.length;
      this.all = [...this.body.rows].map((row) => ({
        row,
        texts: [...row.cells].map((cell) => cell.querySelector(".badge")?.dataset.word ?? cell.textContent.trim()),
      }));
      this.order = this.all;
      this.limit = this.shown;
      this.column = -1;
      this.down = false;
      this.wanted = "";
    }

    load() {
      this.loading ??= this.left ? this.unpack() : Promise.resolve();
      return this.loading;
    }

    async unpack() {
      const { words, tables } = await rest().catch(() => ({ words: [], tables: {} }));
      const known = tables[this.name];
      for (const cells of known?.rows ?? []) this.all.push({ cells });
      this.over = known ? known.over : this.left;
      this.words = words;
      this.loaded = true;
    }

    texts(one) {
      one.texts ??= one.cells.map((cell, n) => {
        if (typeof cell !== "number") return cell.map((item) => this.words[item[1] ?? item]).join(" ");
        const text = this.words[cell];
        return this.kinds[n] === "status" ? (said[text]?.[2] ?? text) : text;
      });
      return one.texts;
    }

    node(one) {
      one.row ??= make("tr", { role: "row" }, ...one.cells.map((cell, n) => this.cell(cell, n)));
      return one.row;
    }

    cell(cell, n) {
      const kind = this.kinds[n];
      const empty = Array.isArray(cell) ? !cell.length : !this.words[cell];
      const label = this.heads[n].dataset.name;
      const node = n === 0
        ? make("th", { scope: "row", role: "rowheader", class: kind })
        : make("td", { role: "cell", class: kind + (empty ? " empty" : ""), "data-label": label });
      if (empty) return node;
      if (Array.isArray(cell)) node.append(...cell.map((item, at) => line(this.words, item, at === 0)));
      else if (kind === "status") node.append(badge(this.words[cell]));
      else if (kind === "code") node.append(make("code", {}, this.words[cell]));
      else node.append(this.words[cell]);
      return node;
    }

    search(text) {
      this.wanted = text.trim().toLowerCase();
      this.limit = this.shown;
      return this.draw();
    }

    sort(column) {
      const numeric = this.kinds[column] === "number";
      this.down = this.column === column ? !this.down : numeric;
      this.column = column;
      return this.draw();
    }

    sorted(rows) {
      if (this.column < 0) return rows;
      const column = this.column, sign = this.down ? -1 : 1, numeric = this.kinds[column] === "number";
      const keys = rows.map((one, at) => {
        const text = this.texts(one)[column];
        return { one, at, text, key: numeric ? figure(text) : text.toLowerCase() };
      });
      const compare = numeric
        ? (a, b) => Number.isNaN(a.key) - Number.isNaN(b.key) || (a.key === b.key ? 0 : sign * (a.key < b.key ? -1 : 1))
        : (a, b) => (a.text === "") - (b.text === "") || (a.key === b.key ? 0 : sign * (a.key < b.key ? -1 : 1));
      return keys.sort((a, b) => compare(a, b) || a.at - b.at).map((key) => key.one);
    }

    async draw() {
      await this.load();
      const words = this.wanted.split(/\s+/).filter(Boolean);
      const found = words.length
        ? this.all.filter((one) => {
            one.low ??= this.texts(one).join("\n").toLowerCase();
            return words.every((word) => one.low.includes(word));
          })
        : this.all;
      this.order = this.sorted(found);
      this.show();
    }

    show() {
      const part = this.order.slice(0, this.limit);
      this.body.replaceChildren(...part.map((one) => this.node(one)));
      this.heads.forEach((head, n) => {
        if (n === this.column) head.setAttribute("aria-sort", this.down ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      this.say?.(part.length);
    }

    more() {
      this.limit += STEP;
      return this.draw();
    }
  }

  const sortable = (rows) => {
    rows.heads.forEach((head, n) => {
      const button = make("button", { type: "button", class: "sort" }, ...head.childNodes);
      button.addEventListener("click", () => rows.sort(n));
      head.replaceChildren(button);
      // As cards the heads are not to be seen, and the list of columns stands for them.
      const follow = () => { button.tabIndex = narrow.matches ? -1 : 0; };
      narrow.addEventListener("change", follow);
      follow();
    });
  };

  const ordering = (rows) => {
    const select = make("select", {}, make("option", { value: "-1" }, "as it came"));
    rows.heads.forEach((head, n) => select.append(
      make("option", { value: `${n}+` }, `${head.dataset.name}, up`),
      make("option", { value: `${n}-` }, `${head.dataset.name}, down`)));
    select.addEventListener("change", () => {
      rows.column = parseInt(select.value, 10);
      rows.down = select.value.endsWith("-");
      rows.draw();
    });
    return make("label", { class: "by" }, "Sort by ", select);
  };

  const tool = (table) => {
    const rows = new Rows(table), total = rows.shown + rows.left;
    table.day0 = rows;
    if (total < 2) return;
    sortable(rows);
    const caption = table.caption.textContent;
    const input = make("input", { type: "search", "aria-label": `Search: ${caption}`, placeholder: "Search", autocomplete: "off" });
    const count = make("span", { role: "status", class: "count" });
    const more = make("button", { type: "button", class: "more-rows" });
    const bar = make("div", { class: "tools" }, input, ordering(rows), count);
    const box = table.parentElement, note = box.nextElementSibling?.matches(".more.cut") ? box.nextElementSibling : null;
    if (total > 12) box.before(bar);
    let timer = 0;
    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => rows.search(input.value), total > 5000 ? 200 : 0);
    });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { input.value = ""; rows.search(""); }
    });
    more.addEventListener("click", () => rows.more());
    if (rows.left) box.after(more);
    rows.say = (part) => {
      const found = rows.loaded || !rows.left ? rows.order.length : total;
      const whole = found.toLocaleString("en"), all = (total - (rows.over ?? 0)).toLocaleString("en");
      count.textContent = rows.wanted ? `${whole} of ${all} rows found, ${part} shown` : `${part} of ${all} rows`;
      more.hidden = part >= found;
      more.textContent = `Show ${Math.min(STEP, found - part)} more`;
      if (note && rows.loaded) {
        note.hidden = !rows.over;
        note.textContent = `… and ${(rows.over ?? 0).toLocaleString("en")} more in ${note.dataset.file}, too many for a page`;
      }
    };
    rows.say(rows.shown);
  };

  // --- charts

  const tip = make("div", { class: "tip", role: "status", hidden: "" });

  const point = (mark, at) => {
    const name = mark.dataset.mark, text = mark.getAttribute("aria-label").slice(name.length + 2);
    tip.replaceChildren(make("strong", {}, name), make("p", {}, text));
    tip.hidden = false;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(8, Math.min(at.x + 14, room)) + scrollX}px`;
    const below = at.y + 18 + tip.offsetHeight < innerHeight;
    tip.style.top = `${(below ? at.y + 18 : at.y - tip.offsetHeight - 10) + scrollY}px`;
  };

  const plot = (figure) => {
    const svg = figure.querySelector("svg.chart");
    const marks = [...svg.querySelectorAll("[data-mark]")];
    if (!marks.length) return;
    const parts = [...marks, ...svg.querySelectorAll("[data-part]")];
    const off = new Set();
    let wanted = "", current = -1;
    const count = make("span", { role: "status", class: "count" });
    const visible = () => marks.filter((mark) => !mark.classList.contains("off") && !mark.classList.contains("dim"));
    const apply = () => {
      for (const mark of parts) {
        const name = mark.dataset.mark ?? mark.dataset.part;
        mark.classList.toggle("off", mark.dataset.groups.split(" ").some((group) => off.has(group)));
        mark.classList.toggle("dim", !name.toLowerCase().includes(wanted));
      }
      const left = visible().length;
      count.textContent = left === marks.length ? "" : `${left} of ${marks.length} marks`;
    };
    for (const key of figure.querySelectorAll("li[data-group]")) {
      const button = make("button", { type: "button", "aria-pressed": "true" }, ...key.childNodes);
      button.addEventListener("click", () => {
        const on = !off.delete(key.dataset.group);
        if (on) off.add(key.dataset.group);
        button.setAttribute("aria-pressed", String(!on));
        apply();
      });
      key.replaceChildren(button);
    }
    if (figure.dataset.operators) {
      const title = figure.querySelector("figcaption").textContent;
      const input = make("input", { type: "search", placeholder: "Operator", "aria-label": `Operator in: ${title}`, autocomplete: "off" });
      input.addEventListener("input", () => { wanted = input.value.trim().toLowerCase(); apply(); });
      svg.before(make("div", { class: "tools" }, input, count));
    } else svg.before(count);
    // One stop for the keyboard; the arrows go from mark to mark.
    const stage = make("div", { class: "stage", tabindex: "0", role: "group", "aria-label": `${svg.getAttribute("aria-label")}. Arrow keys go through the marks.` });
    svg.replaceWith(stage);
    stage.append(svg);
    const leave = () => {
      tip.hidden = true;
      marks[current]?.classList.remove("current");
      current = -1;
    };
    stage.addEventListener("pointermove", (event) => {
      const mark = event.target.closest("[data-mark]");
      if (mark) point(mark, { x: event.clientX, y: event.clientY });
      else if (current < 0) tip.hidden = true;
    });
    stage.addEventListener("pointerleave", leave);
    stage.addEventListener("blur", leave);
    stage.addEventListener("keydown", (event) => {
      if (event.key === "Escape") return leave();
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const found = visible();
      if (!step || !found.length) return undefined;
      event.preventDefault();
      const at = current < 0 ? (step > 0 ? -1 : 0) : found.indexOf(marks[current]);
      const next = found[(at + step + found.length) % found.length];
      marks[current]?.classList.remove("current");
      next.classList.add("current");
      current = marks.indexOf(next);
      const box = next.getBoundingClientRect();
      point(next, { x: box.right, y: box.bottom });
      return undefined;
    });
  };

  // --- commands

  const copying = (code) => {
    const button = make("button", { type: "button", class: "copy" }, "Copy");
    button.setAttribute("aria-label", `Copy command: ${code.textContent}`);
    button.addEventListener("click", async () => {
      let done = true;
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        // Without the clipboard's permission the text is marked, to be copied by hand.
        getSelection().selectAllChildren(code);
        done = document.execCommand("copy");
      }
      button.textContent = done ? "Copied" : "Press Ctrl+C";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    code.after(button);
  };

  document.body.append(tip);
  document.querySelectorAll("table[data-rows]").forEach(tool);
  document.querySelectorAll("figure[data-plot]").forEach(plot);
  document.querySelectorAll(".command > code").forEach(copying);
  addEventListener("beforeprint", () => { tip.hidden = true; });
  document.documentElement.classList.add("script");
})();
