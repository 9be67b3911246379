"""What running a scenario brought, for programs and notebooks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from clustersim.errors import IllegalPlanError
from clustersim.legality.rule import Verdict
from clustersim.library.arguments import instant_ns, parameters, path_given, size_bytes, text_given, whole_number
from clustersim.library.summary import Summary
from clustersim.report.words.run import target_lines
from clustersim.scenario.expect import failed_expectations
from clustersim.scenario.scenario import Scenario
from clustersim.simulation.audit import violation_line as record_line
from clustersim.simulation.legality import violation_lines as scenario_lines
from clustersim.simulation.simulate import RunResult
from clustersim.timeline.timeline import Timeline
from clustersim.units import format_seconds
from clustersim.values import dataclass

if TYPE_CHECKING:
    import pyarrow as pa

    from clustersim.library.why import Why


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Result:
    """A scenario, whether it is legal, and what came out where it is.

    Parameters
    ----------
    scenario : Scenario
    verdict : Verdict
        Of the plan (level P), where that is legal of its step graphs (G), and where these are of what was recorded (T).
    summary : Summary
        What ``clustersim run --json`` prints; where nothing was simulated only name, digest, seed and legality.
    ran : RunResult or None
        What the replay left; None where the plan or its step graphs are illegal: it is not simulated.
    """

    scenario: Scenario
    verdict: Verdict
    summary: Summary
    ran: RunResult | None

    @property
    def legal(self) -> bool:
        """Whether the plan is legal, its step graphs are, and what was recorded."""
        return self.verdict.verdict == "legal"

    @property
    def failures(self) -> tuple[str, ...]:
        """What ``expect`` says that did not come true, a sentence each; none where nothing was simulated."""
        return () if self.ran is None else tuple(failed_expectations(self.scenario.expect, self.summary))

    @property
    def requests(self) -> pa.Table:
        """The rows of ``requests.parquet`` (times in ns) as an Arrow table.

        ``pandas`` takes it by ``.to_pandas()``, polars by ``polars.from_arrow``.
        """
        from clustersim.timeline.parquet import arrow_table

        return arrow_table(self.replayed.table)

    @property
    def steps(self) -> pa.Table:
        """The rows of ``steps.parquet`` (times in ns) as an Arrow table."""
        from clustersim.report.files.run_directory import step_columns
        from clustersim.timeline.parquet import arrow_table

        return arrow_table(step_columns(self.timeline))

    @property
    def timeline(self) -> Timeline:
        """The folded timeline; ``timeline.unfold(start_ns, end_ns, ranks)`` gives a span for every operator."""
        return self.replayed.timeline

    @property
    def replayed(self) -> RunResult:
        """What the replay left.

        Raises
        ------
        IllegalPlanError
            Where nothing was simulated, with what is illegal.
        """
        if self.ran is None:
            lines = "\n".join(violation_lines(self.scenario, self.verdict))
            raise IllegalPlanError(f"{self.scenario.name} is illegal, so it was not simulated:\n{lines}")
        return self.ran

    def dashboard(
        self,
        path: str | Path,
        layout: str = "overview",
        *,
        request: int | None = None,
        at: str | float | None = None,
        max_page: str = "30 MB",
    ) -> Path:
        """Write the dashboard, a page that opens without a network.

        Parameters
        ----------
        path : str or Path
            Of the HTML file; it is complete or absent.
        layout : str
            A name in ``dashboards/``, or the path of a YAML file.
        request : int, optional
            Show this request first.
        at : str or float, optional
            Show the second around this instant first: ``"1234 s"``, or seconds.
        max_page : str
            How large the page may be; a smaller one holds the operators of fewer windows.

        Returns
        -------
        Path
            That of the page.

        Raises
        ------
        InputError
            When there is no such layout, or it can't be read; for an instant outside the run, a request that there
            is not, and a page that can't be so small.
        """
        from clustersim.report.dashboard import write_dashboard
        from clustersim.report.files.run_directory import dashboard_of
        from clustersim.report.folded.asked import Asked, refuse_large, without_unfolding
        from clustersim.report.folded.shapes import shapes_of
        from clustersim.report.layouts import layout as read

        file, request = path_given("path", path), whole_number("request", request)
        at_ns, most_bytes = None if at is None else instant_ns(at), size_bytes("max_page", max_page)
        wanted = Asked(at_ns=at_ns, request=request, most_bytes=most_bytes, most=max_page)
        ran = self.replayed
        with parameters():
            panels = read(text_given("layout", layout))
            figures = (self.summary, ran.table_columns, ran.step_rows, ran.timeline, ran.token_gaps)
            html = dashboard_of(*figures, panels, wanted, shapes_of(ran.scenario), ran.input)
            refuse_large(html, wanted, lambda: dashboard_of(*figures, without_unfolding(panels)), of_command=False)
        write_dashboard(file, html)
        return file

    def save(self, folder: str | Path) -> Path:
        """Write the run directory, as ``clustersim run --out`` does; an earlier run there is replaced as a whole.

        Returns
        -------
        Path
            That of the folder.

        Raises
        ------
        InputError
            When the place can't be written, or holds what no run wrote.
        """
        from clustersim.report.files.run_directory import check_writable, write_run
        from clustersim.report.layouts import overview

        place = path_given("folder", folder)
        with parameters(out="folder"):
            check_writable(place)
        told = {key: value for key, value in self.summary.items() if key != "wall_s"}
        write_run(place, self.replayed, told, lambda: self.verdict, overview())
        return place

    def why(self, allow_code: bool | None = None, *, only: Collection[str] = ()) -> Why:
        """Simulate the same requests with one limit lifted at a time, and say what each gives.

        Parameters
        ----------
        allow_code : bool, optional
            See :func:`clustersim.load`.
        only : collection of str
            Which limits to lift, by the names that ``clustersim why --only`` takes; all by default.

        Raises
        ------
        InputError
            For a name of no limit.

        Returns
        -------
        Why
            Limits, those that help most first; ``page(path)`` writes them with a plot.
        """
        from clustersim.library.why import why_of

        return why_of(self.scenario, self.replayed.input.requests, allow_code, only)

    def __repr__(self) -> str:
        words = " ".join(_words(self.summary)) if self.ran is not None else "not simulated"
        missed = [] if self.ran is None else [words for _, met, words in target_lines(self.summary) if not met]
        words += f"; missed: {', and '.join(missed)}" if missed else ""
        words += f"; not as expected: {'; '.join(self.failures)}" if self.failures else ""
        return f"<Result of {self.scenario.name}: {words}; {self.verdict.verdict.replace('_', ' ')}>"

    def _repr_html_(self) -> str:
        from clustersim.library.notebook import result_html

        return result_html(self)


def _words(summary: Summary) -> list[str]:
    counts = summary.requests
    words = [f"{counts.finished:,} of {counts.arrived:,} requests"]
    for name in ("ttft", "tpot"):
        latency = summary[f"{name}_ms"]
        if latency:
            words.append(f"· p99 {name.upper()} {format_seconds(latency['p99'] / 1e3)}")
    return words


def violation_lines(scenario: Scenario, verdict: Verdict) -> list[str]:
    """Return a line per violation: at its place in the scenario, in its step graphs, or in what was recorded."""
    before = replace(verdict, violations=tuple(found for found in verdict.violations if found.level != "T"))
    recorded = map(record_line, verdict.of_level("T").violations)
    return [*scenario_lines(scenario, before), *recorded]
