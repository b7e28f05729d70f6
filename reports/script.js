// Convenience only: the page is complete without it. Sort, filter, theme, print.
(() => {
  "use strict";
  const root = document.documentElement;
  const themes = ["auto", "light", "dark"];
  const button = document.querySelector("button.theme");
  if (button) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const next = themes[(themes.indexOf(root.dataset.theme || "auto") + 1) % themes.length];
      root.dataset.theme = next;
      button.textContent = `◐ ${next}`;
    });
  }
  const value = (row, column) => {
    const cell = row.cells[column];
    const number = cell.dataset.value;
    return number === undefined ? cell.textContent.trim().toLowerCase() : number === "" ? NaN : Number(number);
  };
  const order = (a, b, sign) => {
    if (typeof a === "string") return sign * a.localeCompare(b);
    return Number.isNaN(a) ? 1 : Number.isNaN(b) ? -1 : sign * (a - b); // what is missing stays last
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const name = head.querySelector(".name");
      if (!name) return;
      const sort = document.createElement("button");
      sort.className = "sort";
      sort.type = "button";
      name.replaceWith(sort);
      sort.append(name);
      sort.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => order(value(a, column), value(b, column), down ? -1 : 1));
        table.tBodies[0].append(...rows);
      });
    });
  }
  for (const tools of document.querySelectorAll(".tools")) {
    const table = document.getElementById(tools.dataset.for);
    const [text, state] = [tools.querySelector("input"), tools.querySelector("select")];
    const left = tools.querySelector("output");
    tools.hidden = false;
    const apply = () => {
      const wanted = text.value.trim().toLowerCase();
      let shown = 0;
      for (const row of table.tBodies[0].rows) {
        const fits = row.textContent.toLowerCase().includes(wanted) && (!state?.value || row.dataset.state === state.value);
        row.hidden = !fits;
        shown += fits;
      }
      left.textContent = `${shown} of ${table.tBodies[0].rows.length}`;
    };
    text.addEventListener("input", apply);
    state?.addEventListener("change", apply);
    apply();
  }
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
})();
