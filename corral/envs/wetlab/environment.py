"""The environment: one task's bench, its tools, its scorer. A thin shell over `Bench`.

``concurrency = "process"`` because the engine under it is process-global in earnest; see `engine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le

from corral.environment import Environment
from corral.envs.wetlab.answers import parse_ions
from corral.envs.wetlab.bench import Bench, Vessel, check_vessel, new_vessel
from corral.envs.wetlab.reference import TIE_ML, TIE_PORES, breakthrough, precipitation
from corral.envs.wetlab.stock import SHELF, solution_totals
from corral.envs.wetlab.tasks import WetlabTask, prompt, score_ions, score_order
from corral.tools import tool
from corral.types import ConcurrencyMode

Millilitres = Annotated[float, Gt(0), Le(250)]

SAMPLE = "sample"


class WetlabEnvironment(Environment):
    """A bench with the task's sample on it.

    ``vessels`` starts the bench from what `export_sample` gave, instead of from the task's own sample.
    """

    concurrency: ConcurrencyMode = "process"
    version: ClassVar[str] = "1"

    def __init__(self, task: WetlabTask, vessels: Mapping[str, Vessel] | None = None):
        super().__init__(task.id)
        self.task = task
        self._start = None if vessels is None else {name: check_vessel(v) for name, v in vessels.items()}
        self._bench: Bench | None = None

    @property
    def bench(self) -> Bench:
        """The bench, laid out at its first use: prototypes never compute anything."""
        if self._bench is None:
            self._bench = Bench(self._start if self._start is not None else self.lay_out())
        return self._bench

    def lay_out(self) -> dict[str, Vessel]:
        """What is on the bench at the start."""
        return {SAMPLE: self._sample()}

    def export_sample(self, vessel: str) -> Vessel:
        """A vessel as plain JSON, for another environment's ``vessels``."""
        return self.bench.export(vessel)

    def get_task_prompt(self) -> str:
        """What is asked."""
        return prompt(self.task)

    def score(self) -> float:
        """F1 over ions; for an order, the share of pairs in the order of the reference experiment."""
        named = parse_ions(self.state.submitted_answer or "")
        if self.task.kind == "anion":  # The salt's potassium is given; naming it is no mistake.
            named = [ion for ion in named if ion != "K+"]
        if self.task.kind in ("ions", "anion"):
            score, parts = score_ions(named, self.task.answer)
        else:
            at, tie = self.reference()
            score, parts = score_order(named, at, tie)
        self.state.feedback = {"understood": named, **{key: round(value, 4) for key, value in parts.items()}}
        return score

    def reference(self) -> tuple[dict[str, float], float]:
        """When each ion of an order comes in the reference experiment, and the distance that counts as a tie."""
        if self.task.kind == "titration":
            return precipitation(self._sample(), self.task.answer), TIE_ML
        return breakthrough(self._sample(), self.task.answer), TIE_PORES

    def _sample(self) -> Vessel:
        litres = self.task.volume_ml / 1000
        return new_vessel(solution_totals(self.task.sample, litres), litres)

    @tool
    def reagents(self) -> list[str]:
        """List the reagents on the shelf."""
        return list(SHELF)

    @tool
    def possible_ions(self) -> list[str]:
        """List the ions that the sample may contain."""
        return list(self.task.possible)

    @tool
    def inventory(self) -> dict[str, dict[str, Any]]:
        """List all vessels with their volume and the solids in them."""
        return self.bench.inventory()

    @tool
    def add(self, vessel: str, reagent: str, volume_ml: Millilitres) -> dict[str, Any]:
        """Add a reagent to a vessel and look.

        A vessel that does not exist yet is taken empty from the shelf.

        Args:
            vessel: The vessel's name.
            reagent: A reagent's name, as in reagents().
            volume_ml: Millilitres; a vessel holds 250.
        """
        return self.bench.add(vessel, reagent, volume_ml)

    @tool
    def pour(self, vessel: str, into: str) -> dict[str, Any]:
        """Pour all of one vessel into another one, and look.

        Args:
            vessel: The vessel that is emptied.
            into: The vessel that takes it.
        """
        return self.bench.mix(vessel, into)

    @tool
    def split(self, vessel: str, new_vessel: str, volume_ml: Millilitres) -> dict[str, Any]:
        """Take a well stirred portion, solids included, into a new vessel.

        Args:
            vessel: The vessel to take from.
            new_vessel: The name of the new one.
            volume_ml: Millilitres to take.
        """
        return self.bench.split(vessel, new_vessel, volume_ml)

    @tool
    def discard(self, vessel: str) -> dict[str, Any]:
        """Throw a vessel's content away.

        Args:
            vessel: The vessel's name.
        """
        return self.bench.discard(vessel)

    @tool
    def centrifuge(self, vessel: str, liquid: str, solid: str) -> dict[str, Any]:
        """Part the clear liquid from the precipitate, which comes out washed and dry.

        Where there is no visible precipitate, everything goes to the liquid and "solid" is null.

        Args:
            vessel: The vessel to separate; its name is free afterwards.
            liquid: The name of the vessel for the liquid.
            solid: The name of the vessel for the precipitate.
        """
        return self.bench.centrifuge(vessel, liquid, solid)

    @tool
    def bubble_h2s(self, vessel: str) -> dict[str, Any]:
        """Saturate the liquid with hydrogen sulfide gas, and look.

        Args:
            vessel: The vessel's name.
        """
        return self.bench.bubble_h2s(vessel)

    @tool
    def boil(self, vessel: str, to_ml: Millilitres) -> dict[str, Any]:
        """Boil the liquid down and hold test papers into the vapour.

        Drives out hydrogen sulfide, carbon dioxide and, from alkali, ammonia; no acid.

        Args:
            vessel: The vessel's name.
            to_ml: The volume to stop at, at most the present one.
        """
        return self.bench.boil(vessel, to_ml)

    @tool
    def digest_nitric(self, vessel: str, volume_ml: Millilitres) -> dict[str, Any]:
        """Warm with nitric acid (6 M), which dissolves most sulfides, and look.

        A declared rule, not an equilibrium: sulfides other than mercury's dissolve, their sulfur is taken away, and
        mercury metal and dissolved mercury(I) become mercury(II).

        Args:
            vessel: The vessel's name; a dry precipitate will do.
            volume_ml: Millilitres of the acid.
        """
        return self.bench.digest_nitric(vessel, volume_ml)

    @tool
    def oxidise_h2o2(self, vessel: str) -> dict[str, Any]:
        """Warm with hydrogen peroxide, and look.

        A declared rule, not an equilibrium, in alkali only (pH 8 or more): chromium(III) becomes chromate,
        manganese(II) hydroxide an inert brown-black oxide, sulfide sulfate.

        Args:
            vessel: The vessel's name.
        """
        return self.bench.oxidise_h2o2(vessel)

    @tool
    def measure_ph(self, vessel: str) -> int:
        """Measure the pH with indicator paper: a whole number.

        Args:
            vessel: The vessel's name.
        """
        return self.bench.measure_ph(vessel)

    @tool
    def flame_test(self, vessel: str) -> str:
        """Hold a loop of the vessel's content into the flame and say its colour. Sodium hides all others.

        Args:
            vessel: The vessel's name.
        """
        return self.bench.flame_test(vessel)

    @tool
    def flame_test_cobalt_glass(self, vessel: str) -> str:
        """The flame test through blue cobalt glass, which takes the yellow of sodium away.

        Args:
            vessel: The vessel's name.
        """
        return self.bench.flame_test(vessel, cobalt_glass=True)

    @tool
    def titrate(
        self, vessel: str, titrant: str, volume_ml: Millilitres, steps: Annotated[int, Ge(1), Le(400)] = 200
    ) -> dict[str, Any]:
        """Run in a titrant in equal steps with a glass electrode: what is seen when, and the pH curve.

        Args:
            vessel: The vessel's name; it is changed.
            titrant: A reagent's name, as in reagents().
            volume_ml: Millilitres of titrant in all.
            steps: Into how many steps the volume is divided.
        """
        return self.bench.titrate(vessel, titrant, volume_ml, steps)

    @tool
    def solubility_scan(self, vessel: str, titrant: str, points: Annotated[int, Ge(1), Le(120)] = 60) -> dict[str, Any]:
        """Set up many small tubes with the same liquid and more and more titrant: where their look changes.

        Args:
            vessel: The vessel to take 0.05 mL per tube from.
            titrant: A reagent's name, as in reagents().
            points: How many tubes; the last one has four volumes of titrant to one of liquid.
        """
        return self.bench.solubility_scan(vessel, titrant, points)

    @tool
    def run_column(
        self,
        sample: str,
        packing: Literal["cation resin", "sand"],
        cells: Annotated[int, Ge(1), Le(40)] = 40,
        shifts: Annotated[int, Ge(1), Le(240)] = 240,
    ) -> dict[str, Any]:
        """Feed a clear liquid to a packed column and collect the effluent in up to 20 equal fractions, in order.

        The column holds 10 mL of water (its pore volume), rinsed with sodium nitrate before; a shift is 10 mL / cells.

        Args:
            sample: The vessel to feed from.
            packing: A cation exchanger in its sodium form, or sand, which holds nothing back.
            cells: How finely the column is computed; more cells, sharper fronts.
            shifts: How many shifts of feed.
        """
        return self.bench.run_column(sample, packing, cells, shifts)
