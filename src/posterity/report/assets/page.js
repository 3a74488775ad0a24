"use strict";
(() => {
  // Theme: what was chosen last, else what the system prefers. Some browsers keep no memory for local files.
  const root = document.documentElement;
  const memory = {
    read() { try { return localStorage.getItem("posterity-theme"); } catch { return null; } },
    write(value) { try { localStorage.setItem("posterity-theme", value); } catch { /* forgets, and that is all */ } },
  };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const show = (theme) => {
    root.dataset.theme = theme;
    button.textContent = theme === "dark" ? "☀ light" : "☾ dark";
    button.setAttribute("aria-label", `switch to ${theme === "dark" ? "light" : "dark"} colours`);
  };
  show(memory.read() || (dark.matches ? "dark" : "light"));
  button.addEventListener("click", () => {
    const other = root.dataset.theme === "dark" ? "light" : "dark";
    memory.write(other);
    show(other);
  });

  // Sorting: the first click puts the better end on top, the next one turns it round; failed methods stay last.
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const first = head.dataset.first || "ascending";
      const now = head.getAttribute("aria-sort");
      const order = now === first ? (first === "ascending" ? "descending" : "ascending") : first;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const value = (row) => row.cells[column]?.dataset.value;
      const compare = (a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
        const [p, q] = [Number(x), Number(y)];
        return sign * (Number.isNaN(p) || Number.isNaN(q) ? x.localeCompare(y) : p - q);
      };
      body.append(...[...body.rows].sort(compare));
    }));
  }
})();
