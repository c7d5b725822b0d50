"""Assign the records of a catalogue to splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from timonel.data.catalogue import RecordCatalogue
from timonel.data.schema import SPLITS, Split
from timonel.data.splits import DEFAULT_FRACTIONS, FEW, VALIDATION_FRACTIONS, Fractions
from timonel.errors import DataError


@dataclass(frozen=True)
class SplitAssignment:
    """How the records were assigned, with warnings of deviations from the thresholds.

    The fractions are the actual ones if the source assigned the splits. ``left_out`` has key and
    reason of copies of held-out records.
    """

    fractions: Fractions
    given: tuple[Split, ...] = ()
    left_out: Sequence[tuple[str, str]] = field(default_factory=list)
    warnings: Sequence[str] = ()


def assign(
    catalogue: RecordCatalogue,
    fractions: Fractions | None,
    *,
    by_label: bool,
    is_grouped: bool = False,
) -> SplitAssignment:
    """Assign each record to a split; identical records were found before.

    Without fractions, the splits are those of the source, if it has any. ``by_label``: each label
    needs training records. ``is_grouped``: groups that the user named stay in one split.
    """
    given = catalogue.assigned()
    if fractions is not None or not given:
        shares = fractions or DEFAULT_FRACTIONS
        catalogue.divide(shares)
        warnings = _complete(catalogue, shares, by_label=by_label)
        if is_grouped:
            warnings += _spread(catalogue)
        return SplitAssignment(shares, warnings=warnings)
    if is_grouped and (found := catalogue.spread_groups()):
        group, (one, other) = found
        raise DataError(
            f"the source assigns the group {group} to the splits {one} and {other}",
            hint="correct the splits, drop the column of splits, or omit --group-by",
        )
    left_out = catalogue.leave_out_copies()
    catalogue.use_assigned()
    if catalogue.unassigned() < FEW:
        catalogue.put_unassigned("train")
    else:
        catalogue.divide(DEFAULT_FRACTIONS)
    _check(catalogue, by_label=by_label)
    warnings = []
    if not catalogue.counts()["validation"]:
        # Training needs a validation split; the test split stays as the source has it.
        catalogue.divide(VALIDATION_FRACTIONS, "train")
        warnings = _complete(catalogue, VALIDATION_FRACTIONS, by_label=by_label)
    counts = catalogue.counts()
    train, validation, test = (counts[split] / sum(counts.values()) for split in SPLITS)
    return SplitAssignment((train, validation, test), given, left_out, warnings)


def _spread(catalogue: RecordCatalogue) -> list[str]:
    """Warn of identical records in several splits, because their groups are."""
    count = catalogue.spread_copies()
    if not count:
        return []
    what = "1 group of identical records is" if count == 1 else f"{count:,} identical records are"
    return [f"{what} in several splits, as --group-by demands: check the groups"]


def _complete(catalogue: RecordCatalogue, fractions: Fractions, *, by_label: bool) -> list[str]:
    """Move records so that train has every label and no split is empty; return warnings."""
    warnings = []
    labels = catalogue.move_to_train(by_label=by_label)
    if labels and not by_label:
        warnings = [_filled("train")]
    elif labels:
        many = f"{len(labels):,} labels, the first {labels[0]!r},"
        what = many if len(labels) > 1 else f"label {labels[0]!r}"
        warnings = [f"{what} would have no training records: some were moved to train"]
    asked = [split for split, part in zip(SPLITS, fractions, strict=True) if part > 0]
    for split in asked:
        if catalogue.counts()[split]:
            continue
        if not catalogue.fill(split, asked, by_label=by_label):
            raise DataError(
                f"{catalogue.count()} records are too few for a {split} split and one training "
                "record of each label",
                hint="add records that are not identical, or use fewer splits with --splits",
            )
        warnings.append(_filled(split))
    return warnings


def _filled(split: Split) -> str:
    return f"the {split} split would be empty: records were moved to it"


def _check(catalogue: RecordCatalogue, *, by_label: bool) -> None:
    if not catalogue.counts()["train"]:
        raise DataError(
            "the source assigns no records to the training split",
            hint="assign some to train, or use --splits 0.8,0.1,0.1",
        )
    if by_label and (missing := catalogue.without_train()):
        label, key, split = missing
        raise DataError(
            f"label {label!r} of {key} is in the {split} split only, not in train",
            hint="use the same label names in all splits, or use --splits 0.8,0.1,0.1",
        )
