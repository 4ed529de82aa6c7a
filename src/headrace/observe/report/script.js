"use strict";
(() => {
  const steps = JSON.parse(document.querySelector("main").dataset.steps);
  const show = (element, yes) => { element.hidden = !yes; };

  // --- readout: point at a step, and every chart tells its numbers -------------------------
  const charts = [...document.querySelectorAll("figure")].map((figure) => ({
    area: figure.querySelector(".area"),
    cursor: figure.querySelector(".cursor"),
    entries: [...figure.querySelectorAll(".legend li")].map((item) => {
      const output = item.querySelector("output");
      return { output, latest: output.textContent, columns: JSON.parse(item.dataset.values) };
    }),
  }));
  const first = steps[0];
  const span = steps[steps.length - 1] - first;
  const place = (step) => (span ? (step - first) / span : 0.5);
  const say = (number) => (number === null ? "–" : String(number).replaceAll("-", "−"));
  let current = null;

  const point = (index) => {
    current = index;
    for (const chart of charts) {
      show(chart.cursor, index !== null);
      if (index !== null) {
        chart.cursor.style.left = 100 * place(steps[index]) + "%";
        chart.cursor.firstChild.textContent = steps[index].toLocaleString("en");
      }
      for (const { output, latest, columns } of chart.entries) {
        output.textContent =
          index === null ? latest : columns.map((column) => say(column[index])).join(" to ");
      }
    }
  };

  const nearest = (share) => {
    const wanted = first + share * span;
    let low = 0;
    let high = steps.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] < wanted) low = middle + 1;
      else high = middle;
    }
    return low > 0 && wanted - steps[low - 1] < steps[low] - wanted ? low - 1 : low;
  };

  for (const { area } of charts) {
    area.addEventListener("pointermove", (event) => {
      const box = area.getBoundingClientRect();
      point(nearest((event.clientX - box.left) / box.width));
    });
    area.addEventListener("pointerleave", () => point(null));
    area.addEventListener("blur", () => point(null));
    area.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      const from = current === null ? steps.length - 1 - move : current;
      point(Math.min(Math.max(from + move, 0), steps.length - 1));
    });
  }

  // --- transcripts: filter, pages, j and k -------------------------------------------------
  const size = 20;
  const items = [...document.querySelectorAll(".items > article")];
  const filters = document.querySelector(".filters");
  let outcome = "all";
  let page = 0;
  let here = null;

  const matching = () =>
    items.filter((item) => outcome === "all" || item.dataset.outcome === outcome);

  const button = (name, label, disabled, action) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = name;
    made.disabled = disabled;
    made.setAttribute("aria-label", label);
    made.addEventListener("click", action);
    return made;
  };

  const draw = () => {
    const found = matching();
    const last = Math.max(Math.ceil(found.length / size) - 1, 0);
    page = Math.min(Math.max(page, 0), last);
    const shown = new Set(found.slice(page * size, (page + 1) * size));
    for (const item of items) show(item, shown.has(item));
    for (const choice of filters.querySelectorAll("[data-filter]")) {
      choice.setAttribute("aria-pressed", String(choice.dataset.filter === outcome));
    }
    const turn = (by) => () => { page += by; here = null; draw(); };
    const from = Math.min(page * size + 1, found.length);
    const told = document.createElement("span");
    told.textContent = `${from}–${page * size + shown.size} of ${found.length}`;
    const pages = filters.querySelector(".pages");
    pages.replaceChildren(
      button("←", "previous page", page === 0, turn(-1)),
      told,
      button("→", "next page", page === last, turn(1)),
    );
  };

  const go = (by) => {
    const found = matching();
    if (!found.length) return;
    const at = here === null ? page * size - (by > 0 ? 1 : 0) : found.indexOf(here);
    const to = Math.min(Math.max(at + by, 0), found.length - 1);
    here = found[to];
    page = Math.floor(to / size);
    draw();
    here.focus({ preventScroll: true });
    here.scrollIntoView({ block: "start" });
  };

  if (filters) {
    show(filters, true);
    filters.addEventListener("click", (event) => {
      const wanted = event.target.dataset.filter;
      if (!wanted) return;
      outcome = wanted;
      page = 0;
      here = null;
      draw();
    });
    document.addEventListener("keydown", (event) => {
      const by = { j: 1, k: -1 }[event.key];
      if (by && !event.ctrlKey && !event.metaKey && !event.altKey) go(by);
    });
    draw();
  }

  // --- tables that sort by a column --------------------------------------------------------
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      if (![...body.rows].some((row) => row.cells[column].dataset.key !== undefined || !column)) return;
      const key = (row) => row.cells[column].dataset.key ?? row.cells[column].textContent;
      const compare = (a, b) => {
        const [left, right] = [key(a), key(b)];
        if (left === "" || right === "") return (left === "") - (right === "");
        return column ? Number(right) - Number(left) : left.localeCompare(right);
      };
      const sort = document.createElement("button");
      sort.type = "button";
      sort.textContent = head.textContent;
      head.replaceChildren(sort);
      sort.addEventListener("click", () => {
        const reverse = head.getAttribute("aria-sort") === "descending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        const rows = [...body.rows].sort(compare);
        if (reverse) rows.reverse();
        head.setAttribute("aria-sort", reverse ? "ascending" : "descending");
        body.append(...rows);
      });
    });
  }
})();
