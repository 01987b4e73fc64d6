"""The conformance suite bites: each broken storage fails the tests that are there for its bug."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any
from unittest import SkipTest

import pytest

from prinia.storage.protocol import Storage
from prinia.testing.conformance import StorageConformance

from .broken import (
    Broken,
    acks,
    announcements,
    bells,
    claims,
    completions,
    deaths,
    keys,
    lists,
    operations,
    pushes,
    reads,
    retention,
    situations,
    strays,
    watch,
)

SUITE = tuple(name for name in dir(StorageConformance) if name.startswith("test_"))

#: Each double with tests that are there for its bug. Others may fail as well.
BROKEN: dict[type[Broken], tuple[str, ...]] = {
    acks.NoFence: ("another_instance_is_lost", "another_token_is_lost", "an_old_ack_does_not_touch_the_next_claim"),
    acks.FencedByOwnerAlone: ("another_token_is_lost", "an_old_and_a_new_ack_in_one_flush"),
    acks.FencedByTokenAlone: ("another_instance_is_lost", "an_old_ack_does_not_touch_the_next_claim"),
    acks.AckForgotten: ("a_final_ack_sent_again", "a_retry_sent_again", "a_snooze_sent_again"),
    acks.AckRecordedTwice: (
        "a_retry_sent_again",
        "a_snooze_sent_again",
        "an_ack_twice_in_one_flush",
        "the_first_outcome_stands",
    ),
    acks.EverythingRecorded: ("an_ack_of_a_job_nobody_claimed_is_lost", "a_flush_with_one_lost_records_the_others"),
    acks.AttemptNotHandedBack: (
        "uncounted_hands_the_attempt_back",
        "a_snooze_costs_no_attempt",
        "a_handed_back_job_can_be_claimed_by_others",
    ),
    acks.EmptyResultLost: ("results_are_any_bytes",),
    acks.HistoryLost: ("attempts_are_counted_and_remembered",),
    acks.HistoryEndless: ("the_latest_errors_are_kept",),
    acks.TextsAsTheyAre: ("error_texts_may_hold_anything",),
    acks.AckedAgain: ("complete", "fail", "cancel"),
    acks.EndUnexplained: ("complete", "fail", "cancel", "a_completed_job_remembers_its_failed_attempts"),
    acks.FlushCut: ("a_flush_of_thousands",),
    acks.EndsUntold: ("a_receipt_tells_what_a_cancel_request_ended", "the_first_outcome_stands"),
    acks.EmptyFlushRefused: ("an_empty_flush",),
    acks.HugeTextsRefused: ("huge_error_texts_do_not_hurt",),
    acks.ReasonsAsTheyAre: ("reasons_may_hold_anything",),
    announcements.EndsUnannounced: ("every_way_to_end_is_announced",),
    announcements.EveryEndAnnounced: ("nobody_hears_of_what_nobody_expects",),
    announcements.AnnouncedToOne: ("everybody_hears",),
    announcements.FewAnnounced: ("thousands_are_announced",),
    announcements.HeardForEver: ("who_has_gone_hears_nothing",),
    bells.BellMute: (
        "a_push_wakes_a_sleeper",
        "a_push_from_another_thread_wakes_a_sleeper",
        "a_job_due_later_wakes_a_sleeper",
        "a_resumed_queue_wakes_a_sleeper",
        "a_bell_can_be_armed_again",
    ),
    bells.BellForgetful: ("a_ring_before_the_sleep_counts",),
    bells.BellForPushesOnly: (
        "a_retry_due_now_wakes_a_sleeper",
        "a_rescue_wakes_a_sleeper",
        "strays_wake_a_sleeper",
    ),
    bells.BellNotPassedOn: ("every_sleeper_may_be_woken",),
    bells.BellAlwaysRings: ("a_sleep_ends",),
    bells.BellBlinds: ("a_push_before_the_arming_is_claimed",),
    bells.BellForEverybody: ("who_does_not_listen_is_not_rung",),
    claims.NoLock: ("eight_claimers_share_without_overlap",),
    claims.PriorityIgnored: ("bigger_priority_goes_first", "a_late_important_job_overtakes"),
    claims.DueTimeIgnored: (
        "earlier_due_goes_first",
        "nothing_is_claimed_before_it_is_due",
        "scheduled_jobs_of_bigger_priority_hold_nothing_up",
    ),
    claims.DelayIgnored: ("a_retry_waits_for_its_delay", "a_snooze_waits_for_its_delay"),
    claims.OldDueTimeKept: ("what_comes_back_waits_its_turn",),
    claims.NoTurns: ("queues_take_turns",),
    claims.PauseIgnored: (
        "a_paused_queue_is_left_alone",
        "an_unknown_queue_can_be_paused",
        "paused_queues_do_not_keep_a_worker_awake",
    ),
    claims.ExcludeIgnored: ("an_excluded_task_is_left_alone", "a_handed_back_job_can_be_claimed_by_others"),
    claims.LimitIgnored: ("a_claim_takes_no_more_than_asked_for",),
    claims.SuspectsBesideOthers: ("suspects_are_claimed_alone",),
    claims.NeverExpires: (
        "a_claim_says_that_a_job_has_expired",
        "a_later_attempt_expires",
        "a_sweep_ends_what_waited_too_long",
    ),
    claims.ClaimByAll: ("a_worker_claims_from_its_queues_only",),
    claims.NextDueUnknown: ("a_short_claim_says_when_the_next_job_is_due", "a_retry_waits_for_its_delay"),
    claims.HastyClaimsMisled: ("what_a_hasty_claim_overlooks_is_found",),
    claims.ScheduledInTheWay: ("scheduled_jobs_of_bigger_priority_hold_nothing_up",),
    completions.CompletedAtOnce: (
        "a_completion_on_no_known_connection_is_refused",
        "a_committed_completion_ends_the_job",
        "a_rolled_back_completion_changes_nothing",
    ),
    completions.CompletedByAnybody: ("a_completion_by_another_claim_changes_nothing",),
    completions.XidForgotten: (
        "a_transaction_is_in_progress_until_it_ends",
        "a_replacement_is_in_progress_and_a_kept_job_is_not",
    ),
    completions.KeptTakenForReplaced: ("a_replacement_is_in_progress_and_a_kept_job_is_not",),
    deaths.RescueKeepsOwner: ("a_late_ack_of_a_dead_worker_is_lost", "recover_hands_back_what_was_not_heard"),
    deaths.LateAckOfTheDead: ("a_late_ack_of_a_dead_worker_is_lost",),
    deaths.CrashCostsAnAttempt: ("jobs_come_back_uncounted", "a_crash_keeps_failed_attempts"),
    deaths.CrashNotCounted: ("jobs_come_back_uncounted", "a_job_that_keeps_killing_ends_as_failed"),
    deaths.CrashHitsTheNotStarted: ("only_what_had_started_says_so",),
    deaths.StartedNotKept: ("only_what_had_started_says_so",),
    deaths.RerunsWhatMayNot: ("what_may_not_rerun_ends",),
    deaths.RescuesWhatWasRecorded: ("what_was_recorded_is_not_rescued",),
    deaths.RescuesTheLiving: ("others_keep_their_jobs",),
    deaths.RescueUnbounded: ("a_rescue_goes_in_batches",),
    deaths.AckAndRescue: ("an_ack_before_the_rescue_counts_or_is_lost",),
    keys.WindowEndsWithJob: ("a_key_with_a_window_outlives_its_job", "an_ended_holder_is_kept_within_its_window"),
    keys.WindowEndless: ("a_window_ends",),
    keys.ScopesMixed: ("keys_with_and_without_a_window_are_apart",),
    keys.WindowOfNothing: ("a_push_that_fails_takes_no_window",),
    keys.SweepOfHeldKeys: ("a_sweep_forgets_keys_whose_window_is_over",),
    keys.WindowRaced: ("eight_pushes_of_a_key_whose_window_is_over",),
    keys.ReplaceIgnored: ("a_waiting_holder_is_replaced", "replacing_within_one_push"),
    keys.ReplaceKeepsDueTime: ("a_replaced_job_is_due_when_the_new_one_is",),
    keys.ReplaceKeepsHistory: ("a_retrying_holder_starts_anew",),
    keys.ReplacesRunning: ("a_running_holder_is_kept",),
    keys.ReplacesEnded: ("an_ended_holder_is_kept_within_its_window",),
    keys.ReplaceMovesWindow: ("replacing_moves_no_window",),
    keys.ReplaceForgetsFence: ("an_ack_sent_again_after_replacing",),
    keys.ReplaceMute: ("a_replaced_job_wakes_a_sleeper",),
    lists.StateIgnored: ("jobs_of_every_state_are_found_by_it", "jobs_are_found_by_id"),
    lists.FinishedUnseen: (
        "jobs_of_every_state_are_found_by_it",
        "jobs_are_found_by_queue_task_and_tags",
        "jobs_are_found_by_id",
        "jobs_are_found_by_their_latest_error",
        "jobs_are_found_by_the_instance_that_ran_them",
        "jobs_are_found_by_their_times",
    ),
    lists.AnyTag: ("jobs_are_found_by_queue_task_and_tags",),
    lists.NothingIsEverything: ("jobs_are_found_by_id",),
    lists.FirstError: ("jobs_are_found_by_their_latest_error",),
    lists.OwnerOutlives: ("jobs_are_found_by_the_instance_that_ran_them",),
    lists.BeforeIncludes: ("jobs_are_found_by_their_times",),
    lists.Forgetful: ("what_is_found_is_told_whole",),
    lists.AlwaysNewestFirst: ("newest_or_oldest_first",),
    lists.PagesByNumber: ("pages_hold_still_while_jobs_move",),
    lists.OneMorePage: ("a_full_page_at_the_end_is_the_last",),
    lists.BlockingFormsBlind: ("the_blocking_forms_answer_alike",),
    lists.CountsLiveOnly: ("jobs_are_counted",),
    lists.ScheduledAreReady: ("queues_tell_their_jobs_by_state",),
    lists.DeadServe: ("queues_tell_who_serves_them",),
    lists.ImportantOldest: ("queues_tell_how_long_jobs_have_been_ready",),
    lists.PauseUnseen: ("queues_tell_whether_they_are_paused",),
    lists.DeadAreWell: ("workers_are_told",),
    lists.VitalsStay: ("workers_tell_how_they_are",),
    operations.SelectionIgnored: ("only_what_meets_the_selection_is_changed",),
    operations.StepsStandStill: ("steps_go_on_where_the_last_one_ended",),
    operations.DryStepsAct: ("a_dry_step_changes_nothing",),
    operations.OperationsOnlySaid: (
        "a_cancel_ends_or_marks",
        "run_now",
        "reschedule",
        "reprioritise",
        "move",
        "delete",
        "a_failed_job_comes_back",
        "waiting_retries_are_due_now",
    ),
    operations.RunningTaken: ("running_jobs_are_left_alone",),
    operations.EndedUnexplained: ("ended_jobs_are_skipped_by_their_state", "a_unique_key_is_taken_again"),
    operations.OperationsMute: ("what_becomes_claimable_wakes_a_sleeper",),
    operations.OneColourInert: ("both_colours_do_the_same",),
    operations.HistoryLeftBehind: ("a_failed_job_comes_back",),
    operations.FenceLeftBehind: ("an_old_ack_does_not_touch_what_came_back",),
    operations.AllComeBack: ("others_come_back_where_their_state_is_named",),
    operations.ArgumentsMadeUp: ("what_cannot_run_again_is_left",),
    operations.KeysForgotten: ("a_unique_key_is_taken_again", "a_key_with_a_window_stays_its_job_s"),
    operations.PausesOnlySaid: ("what_is_paused_is_not_claimed", "suspects_are_paused_too", "pauses_are_told"),
    operations.PausesAreForAll: ("others_go_on",),
    operations.PausedLost: ("what_was_passed_over_is_found",),
    operations.PauseTakesAway: ("running_jobs_go_on",),
    operations.ResumeMute: ("a_resume_wakes_a_sleeper",),
    operations.CommandIgnored: ("a_worker_with_a_command_claims_nothing", "a_new_life_keeps_its_command"),
    operations.CommandTakesAway: ("its_running_jobs_go_on",),
    operations.CommandAlwaysNew: ("a_command_is_new_once",),
    operations.GhostsTold: ("who_is_not_there_cannot_be_told",),
    operations.SummonsMute: ("a_command_summons",),
    operations.SummonsForgotten: ("a_command_summons",),
    operations.CommandDiesWithLife: ("a_new_life_keeps_its_command",),
    operations.AuditForgotten: ("everything_is_in_the_audit", "the_audit_is_read_in_pages"),
    operations.AuditUnsorted: ("the_audit_is_read_in_pages",),
    operations.StepsApart: ("everything_is_in_the_audit",),
    operations.NamesAsTheyAre: ("names_may_hold_anything",),
    operations.WhoIsForgotten: ("a_cancel_ends_or_marks",),
    operations.AlwaysRescheduledByDelay: ("reschedule",),
    pushes.UniqueKeyLost: ("a_held_key_keeps_the_holder", "a_held_key_raises_when_asked"),
    pushes.UniqueKeyFreedByClaim: ("a_key_is_held_while_its_job_lives",),
    pushes.UniqueKeyNeverFreed: ("a_key_is_free_when_its_job_has_ended",),
    pushes.UniqueKeyRaced: ("eight_pushes_of_one_key_at_once", "sixteen_replace_at_the_moment_of_the_ack"),
    pushes.EarlyCommit: (
        "an_iterable_that_raises_midway_leaves_nothing",
        "an_error_in_a_later_chunk_leaves_nothing",
        "two_equal_keys_in_one_push_raise_when_asked",
    ),
    pushes.PushReversed: (
        "answers_come_in_the_order_given",
        "equal_jobs_go_in_the_order_of_their_push",
        "two_equal_keys_in_one_push",
    ),
    pushes.ArgumentsRewritten: ("json_arguments_come_back_verbatim",),
    pushes.NulEscapeRefused: ("a_nul_escape_in_json_arguments",),
    pushes.PushWithinAnything: ("a_connection_of_no_known_kind_is_refused",),
    pushes.TransactionIgnored: (
        "a_committed_push_is_claimed",
        "a_rolled_back_push_leaves_nothing",
        "a_push_in_flight_is_not_slept_through",
    ),
    pushes.CommitMute: ("a_sleeper_is_woken_by_the_commit",),
    pushes.EmptyPushRefused: ("an_empty_push_stores_nothing",),
    pushes.AsyncIterableCut: ("all_ways_to_give_jobs",),
    pushes.PushCut: ("thousands_in_one_push",),
    pushes.ManyForgetOptions: ("thousands_are_stored_as_one_is",),
    pushes.ManyMute: ("thousands_in_one_push_wake_a_sleeper",),
    pushes.PastDueTimeKept: ("a_due_time_in_the_past_becomes_now",),
    pushes.CodecForgotten: (
        "bytes_of_other_codecs_come_back_verbatim",
        "options_reach_the_worker",
        "a_waiting_job_reads_as_it_was_pushed",
    ),
    pushes.OptionsForAll: ("a_plain_job_has_no_extras",),
    reads.FindByIdOrder: ("find_answers_in_the_order_asked",),
    reads.ArgumentsDropped: ("arguments_of_ended_jobs_are_kept",),
    reads.ClaimUnmarked: ("a_claim_owns_its_jobs", "a_retry_comes_back_after_its_delay"),
    reads.CancelCountsAll: ("finished_and_unknown_jobs_are_not_counted",),
    reads.CancelOnlyMarks: ("waiting_jobs_end_at_once",),
    reads.SweepTakesRunning: ("a_sweep_leaves_the_others_alone",),
    reads.CancelForgotten: (
        "a_running_job_is_marked",
        "a_marked_job_is_cancelled_when_its_worker_dies",
        "a_marked_job_is_cancelled_when_a_claim_is_recovered",
    ),
    reads.CancelUnheard: ("a_worker_hears_of_cancel_requests",),
    reads.CancelHeardByAll: ("a_worker_hears_of_cancel_requests",),
    reads.CancelBeatsResult: ("a_result_that_arrives_wins",),
    retention.NothingForgotten: (
        "finished_jobs_are_kept_by_their_state",
        "a_queue_has_its_own_retention",
        "jobs_can_be_kept_for_long",
        "what_has_ended_goes_as_was_said_then",
    ),
    retention.OneRetentionForAllStates: ("finished_jobs_are_kept_by_their_state",),
    retention.RetentionForAllQueues: ("a_queue_has_its_own_retention",),
    retention.LongRetentionCut: ("jobs_can_be_kept_for_long", "jobs_can_be_kept_for_ever"),
    retention.RetentionForTheEnded: ("what_has_ended_goes_as_was_said_then",),
    retention.RetentionForgotten: ("a_queue_has_its_own_retention", "a_retention_reads_as_it_was_set"),
    retention.LiveJobsSwept: ("live_jobs_are_not_swept",),
    situations.EndedUnexplained: ("a_situation_has_the_job",),
    situations.BlockingFormBlind: ("a_situation_has_the_job",),
    situations.DeadlineUntold: ("the_latest_start_is_told",),
    situations.OddCount: ("jobs_ahead_are_counted", "many_ahead_are_counted_up_to_a_limit"),
    situations.FirstComeFirst: ("jobs_ahead_are_counted",),
    situations.EverybodyAhead: ("who_could_not_be_claimed_is_not_ahead", "who_is_not_ready_has_nobody_ahead"),
    situations.CountedWithoutEnd: ("many_ahead_are_counted_up_to_a_limit",),
    situations.PausesUntold: ("pauses_and_workers_are_told_of_live_jobs",),
    situations.DeadUntold: ("pauses_and_workers_are_told_of_live_jobs",),
    situations.AlwaysAround: ("pauses_and_workers_are_told_of_live_jobs",),
    situations.CommanderForgotten: ("workers_tell_who_told_them",),
    situations.CommanderStays: ("workers_tell_who_told_them",),
    situations.CancellerUnnamed: ("a_running_job_tells_who_wants_it_cancelled",),
    strays.RecoverDoesNothing: ("recover_hands_back_what_was_not_heard", "recover_names_what_is_lost"),
    strays.StraysStay: ("a_claim_no_longer_reported_is_a_stray",),
    strays.StraysTooSoon: ("a_claim_may_be_in_flight",),
    strays.StraysOfAll: ("a_reported_claim_is_no_stray",),
    strays.RecoverTakesAll: ("recover_leaves_others_alone",),
    watch.ZombieClaims: ("the_dead_claim_nothing", "an_instance_that_is_not_open_claims_nothing"),
    watch.DeclaresTheBeatingDead: ("who_beats_is_not_declared_dead",),
    watch.TwoLeaders: ("one_leads",),
    watch.TermIgnored: ("an_old_term_is_no_claim_to_lead",),
    watch.CloseForgotten: (
        "a_closed_instance_is_off_the_register",
        "a_leader_that_closed_is_followed",
        "the_jobs_of_a_closed_instance_come_back",
    ),
    watch.BeatRegisters: ("an_unknown_instance_is_not_alive", "the_dead_are_told_apart"),
    watch.CounterStands: ("beats_count_up",),
    watch.DeadLead: ("the_dead_do_not_lead", "one_leads"),
    watch.DeadUnseen: ("the_dead_are_told_apart",),
}


def failures(double: type[Broken], names: Iterable[str], *, patience: float = 0.4) -> set[str]:
    """Which of these tests fail on a double. What is broken is not worth much patience."""

    class Suite(StorageConformance):
        def make_storage(self) -> Storage:
            return double()

        def transaction(self, storage: Storage) -> AbstractContextManager[Any] | None:
            assert isinstance(storage, Broken)
            return storage.transaction()

    Suite.patience = patience

    def fails(name: str) -> bool:
        try:
            getattr(Suite(), name)()
        except SkipTest:
            return False
        except (AttributeError, NameError, TypeError):
            raise  # a double that does not fit the storage any more, and would be noticed for that alone
        except Exception:  # a broken storage may raise anything
            return True
        return False

    given = tuple(names)
    with ThreadPoolExecutor(8) as pool:
        return {name for name, failed in zip(given, pool.map(fails, given), strict=True) if failed}


@pytest.mark.parametrize("double", BROKEN, ids=lambda double: double.__name__)
def test_a_broken_storage_is_noticed(double: type[Broken]) -> None:
    expected = {f"test_{name}" for name in BROKEN[double]}
    assert failures(double, expected) == expected


def test_every_promise_was_seen_broken() -> None:
    assert {f"test_{name}" for names in BROKEN.values() for name in names} == set(SUITE)


def test_every_double_is_in_the_table() -> None:
    assert set(BROKEN) == set(_below(Broken))


def test_the_unbroken_parts_break_nothing() -> None:
    assert failures(Broken, SUITE, patience=20) == set()


def _below(kind: type[Broken]) -> Iterator[type[Broken]]:
    for double in kind.__subclasses__():
        yield double
        yield from _below(double)
