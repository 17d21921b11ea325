"""Mistakes that people make in a change, one in each entry; ``mutants.py --mistakes`` makes them.

An operator that is flipped is only one kind of defect. These are of others: a wrong minimum, a
branch that keeps one side, a step out of order before a kill, state that is not taken back, a cache
that is not invalidated, an error that is swallowed, bytes that are forgotten at the end of a file.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Mistake(NamedTuple):
    """A mistake, as a replacement of some text of a module.

    Attributes:
        module: below the project.
        before: text of the module, which stands there once.
        after: what stands there after the mistake.
        harm: what a user has of it.
        tests: the tests nearest to the module, below the folder of tests.
    """

    module: str
    before: str
    after: str
    harm: str
    tests: str


MISTAKES: Final = (
    Mistake(
        "store/rmqstore/storage/files/paths.py",
        "found = [folder for folder in folders if has_database(self.storage, folder)]",
        'found = [folder for folder in folders if self.storage.exists(folder / "CURRENT")]',
        "without one small file of their database, light message queues are missing in silence",
        "storage/queue/test_rocksdb_queues.py",
    ),
    Mistake(
        "store/rmqstore/write/repairer.py",
        "        self._leave_open(checkpoint if self._paths.has_abort else at_end)\n",
        "",
        "queues that a killed repair of a damaged log left half built are believed",
        "crash/test_half_built.py",
    ),
    Mistake(
        "store/rmqstore/storage/queue/placing.py",
        "        n_passed = min(max(place - first, 0), high - start)",
        "        n_passed = 0",
        "a rebuild puts messages into queues twice, whose offsets a broker gave out twice",
        "storage/queue/test_appender.py",
    ),
    Mistake(
        "store/rmqstore/storage/queue/placing.py",
        "compared = queue_offsets * _UNIT // _UNIT",
        "compared = queue_offsets",
        "one impossible queue offset shifts a rebuilt queue against that of a broker",
        "storage/queue/test_appender.py",
    ),
    Mistake(
        "store/rmqstore/query/conditions.py",
        "in self.topic_prefixes if prefix in other.topic_prefixes)",
        "in self.topic_prefixes)",
        "of topic LIKE 'a%' OR topic LIKE 'b%' only the topics of one side are read",
        "query/test_where.py",
    ),
    Mistake(
        "store/rmqstore/query/conditions.py",
        """return LookupKeys() if "" in words else LookupKeys(keys=frozenset(words))""",
        """return LookupKeys(keys=frozenset(words - {""}))""",
        "of keys IN ('k1', ' ') the index gives only the messages of k1",
        "query/test_where.py",
    ),
    Mistake(
        "store/rmqstore/write/writer.py",
        """        self._checkpoint.save(index=self._last_store_timestamp)
        dispatcher = Dispatcher(""",
        "        dispatcher = Dispatcher(",
        "a broker that starts after a kill deletes index files that are newer than the checkpoint",
        "write/test_saved_checkpoint.py",
    ),
    Mistake(
        "store/rmqstore/write/writer.py",
        "self._checkpoint.set_back(int(times.min()))",
        "self._checkpoint.set_back(int(times[-1]))",
        "a recovery of a broker begins after records whose queues are not built",
        "write/test_saved_checkpoint.py",
    ),
    Mistake(
        "store/rmqstore/write/writer.py",
        """        self._topics.clear()
        self._has_failed = had_failed""",
        "        self._has_failed = had_failed",
        "topics.json gets a topic of which every row was discarded",
        "write/test_writer.py",
    ),
    Mistake(
        "store/rmqstore/write/writer.py",
        """        self._offsets.forget()
        self._topics.clear()""",
        "        self._topics.clear()",
        "queues get holes where rows were discarded",
        "write/test_writer.py",
    ),
    Mistake(
        "store/rmqstore/write/writer.py",
        """            if txn is not None:
                self._ledger.intend(*txn, self._log, *self._append.first_and_last())
            if start != end:
                self._append.commit()
""",
        """            if start != end:
                self._append.commit()
            if txn is not None:
                self._ledger.intend(*txn, self._log, *self._append.first_and_last())
            if start != end:
""",
        "a job that is repeated after a kill is appended twice",
        "crash/test_append.py",
    ),
    Mistake(
        "store/rmqstore/write/writer.py",
        "log.close()\n            self._lock.release()\n            # A writer",
        "lock.release()\n            # A writer",
        "each writer leaves the files of the log open",
        "write/test_writer.py",
    ),
    Mistake(
        "store/rmqstore/storage/log/appender.py",
        "n_bytes <= n_left - MIN_BLANK_BYTES",
        "n_bytes <= n_left",
        "a job whose records end within eight bytes of the end of a file fails",
        "write/staged/test_placement.py",
    ),
    Mistake(
        "store/rmqstore/storage/index_appender.py",
        'header["begin_timestamp"] = header["end_timestamp"] = before.header["end_timestamp"]',
        'header["begin_timestamp"] = header["end_timestamp"] = before.header["begin_timestamp"]',
        "the first key of an index file has another time than a broker gives it",
        "storage/index/test_index_files.py",
    ),
    Mistake(
        "store/rmqstore/storage/index_appender.py",
        "done += min(n_of_last_record, self._n_items_of_last_record)",
        "done += n_of_last_record",
        "keys of the last record that a crash kept from the index are never found again",
        "storage/index/test_index_files.py",
    ),
    Mistake(
        "store/rmqstore/inspect/broker_start.py",
        "(*paths.queue_folders.queues(), *paths.batch_folders.queues())",
        "paths.queue_folders.queues()",
        "verify says that a broker builds units of records before the end of a batch queue",
        "inspect/test_broken_stores.py",
    ),
    Mistake(
        "store/rmqstore/read/pending.py",
        "_Timed.waiting(waiting, units.precision)",
        "_Timed.waiting(waiting, TIMER_PRECISIONS_MS[-1])",
        "with timerPrecisionMs=100 a timed message that was cancelled is shown as pending",
        "read/lookup/test_timers.py",
    ),
    Mistake(
        "store/rmqstore/query/times.py",
        "return round(aware.timestamp() * 1000)",
        "return int(aware.timestamp() * 1000)",
        "a time is a millisecond early, so a read begins with a message too many",
        "query/test_times.py",
    ),
    Mistake(
        "store/rmqstore/replica/retention.py",
        "source_begin is not None and segment.end <= source_begin",
        "source_begin is not None and segment.start < source_begin",
        "a mirror deletes a file of which the broker still has a part",
        "following/test_retention.py",
    ),
    Mistake(
        "store/rmqstore/replica/ha.py",
        "n_come += connection.receive(buffer[n_come:], _POLL_SECONDS)",
        "n_come = connection.receive(buffer, _POLL_SECONDS)",
        "a handshake that comes in two pieces ends the connection",
        "following/test_ha_stream.py",
    ),
    Mistake(
        "store/rmqstore/inspect/changes.py",
        "MessageMaker(replace(spec, queue_nums=nums, n_delay_levels=n_levels))",
        "MessageMaker(replace(spec, n_delay_levels=n_levels))",
        "a dry run says another number of queues than the import fills",
        "inspect/test_changes.py",
    ),
    Mistake(
        "store/rmqstore/source/continuation.py",
        "records = {**since.last_records}",
        "records = dict[str, LastRecord]()",
        "a broker that is away for a trigger can come back with a cut log, and nobody sees it",
        "connector/test_brokers.py",
    ),
    Mistake(
        "store/kafkalog/groups.py",
        "if marker.is_commit and (known is None or known[0] < offset):",
        "if marker.is_commit:",
        "a group is shown at an older offset than it has committed",
        "kafkalog/test_transactions.py",
    ),
    Mistake(
        "store/rmqstore/copying/copier.py",
        """                    if window[:n_read].any():
                        self.disk.write(path, position, window[:n_read])""",
        """                    if n_read and window.any():
                        self.disk.write(path, position, window)""",
        "a copy has bytes of another place where its source became shorter",
        "test_copy.py",
    ),
    Mistake(
        "store/rmqstore/live/pulls.py",
        "        self.patience.renew()\n        n_given_up",
        "        n_given_up",
        "a long read fails at the third error of a broker, however much came between",
        "live/test_reads.py",
    ),
    Mistake(
        "store/rmqstore/live/pulls.py",
        "        self.again.clear()\n        at = self.head",
        "        at = self.head",
        "after a lost connection messages are asked for twice",
        "live/test_reads.py",
    ),
    Mistake(
        "connector/pyspark_rmqstore/sink.py",
        'max(path.lstat().st_mtime for path in (other, *other.rglob("*")))',
        "other.lstat().st_mtime",
        "the folder of a job that writes for a day is deleted under it",
        "connector/test_staging.py",
    ),
    Mistake(
        "connector/pyspark_rmqstore/stream_reader.py",
        "may_wait = self._target is None",
        "may_wait = True",
        "a query with availableNow and minOffsetsPerTrigger ends before its last messages",
        "connector/test_stream_read.py",
    ),
    Mistake(
        "connector/pyspark_kafkalog/stream_reader.py",
        "may_wait = self._target is None",
        "may_wait = True",
        "a query of kafkalog with availableNow and a minimum ends before its last records",
        "kafkalog/connector/test_streams.py",
    ),
    Mistake(
        "connector/pyspark_kafkalog/ranges.py",
        "start, follows = end, True",
        "start = end",
        "a damaged batch at the border of two tasks has two rows",
        "kafkalog/connector/test_ranges.py",
    ),
    Mistake(
        "store/kafkalog/verify.py",
        "(np.diff(timestamps) <= 0).any()",
        "(np.diff(timestamps) < 0).any()",
        "verify finds nothing in a time index with two entries of one time, as no broker writes",
        "kafkalog/test_inspect.py",
    ),
    Mistake(
        "store/kafkalog/storage/recovery.py",
        "max(snapshots, default=0)",
        "min(snapshots, default=0)",
        "an old snapshot of a producer hides where the log was closed",
        "kafkalog/test_offset_order.py",
    ),
    Mistake(
        "store/rmqstore/inspect/verify.py",
        "self._n_matched += n_records(physical_offsets[exists])",
        "self._n_matched += n_records(physical_offsets)",
        "verify passes over units that lead nowhere where as many records have none",
        "inspect/test_verify.py",
    ),
    Mistake(
        "store/rmqstore/storage/timer.py",
        """is_own = seconds % TIMER_SLOTS == np.arange(number, number + count)
                is_own &= (seconds > 0) & (stored["first"] >= 0)""",
        'is_own = (seconds > 0) & (stored["first"] >= 0)',
        "a slot that lies in a foreign place of the timer wheel brings back messages",
        "read/lookup/test_timers.py",
    ),
    Mistake(
        "store/rmqstore/read/plan.py",
        "if restarts.run.is_open and store.ends.were_of_closed_store:",
        "if restarts.run.is_open and store.ends.ignores_log_end:",
        "a store that a broker opened since it was read first lacks the newest messages",
        "store/test_scan.py",
    ),
    Mistake(
        "store/rmqstore/read/plan.py",
        "lost = tuple(find_lost(store, () if is_pruned else slices, spec))",
        "lost = () if is_pruned else tuple(find_lost(store, slices, spec))",
        "a read with a condition says nothing of the records that the log lost",
        "read/test_lost_stretches.py",
    ),
    Mistake(
        "store/rmqstore/query/where.py",
        '((">=", start), ("<", end))',
        '((">=", start), ("<=", end))',
        "a range of the log by an expression of Arrow has the record at its end, too",
        "store/test_scan.py",
    ),
    Mistake(
        "store/rmqstore/exchange/bodies.py",
        'if "\\n" in text or "\\r" in text:',
        'if "\\n" in text:',
        "a JSON body with carriage returns is no row of JSON Lines any more",
        "cli/test_messages.py",
    ),
    Mistake(
        "store/rmqstore/source/tail.py",
        "return min(by_time, self._first_at(key, last_record.physical_offset, span))",
        "return by_time",
        "a stream misses what replaced a cut record if the clock was set back meanwhile",
        "source/test_tail.py",
    ),
    Mistake(
        "store/rmqstore/live/stream.py",
        "known = {} if last_record is None else self.ends",
        "known = self.ends",
        "a stream of a broker whose log is another one marks no record, or an older one",
        "connector/test_live_spark.py",
    ),
    Mistake(
        "store/rmqstore/inspect/broker_start.py",
        "return None if first_size == second_size else common_size",
        "return None",
        "of two files of a name the shorter one is called a copy, and the longer one moved away",
        "inspect/test_broker_start.py",
    ),
    Mistake(
        "store/rmqstore/replica/retention.py",
        "for path in index_files(paths.index)[:-1]:",
        "for path in index_files(paths.index):",
        "a mirror without an index file, where a broker keeps one",
        "following/test_retention.py",
    ),
    Mistake(
        "store/rmqstore/replica/heartbeats.py",
        """    if link.position != position:  # more has come since
        return state, []
""",
        "",
        "a follower takes an old answer for the end of the log, and copies no more",
        "following/test_maintenance.py",
    ),
    Mistake(
        "store/rmqstore/inspect/remedies.py",
        "elif command == _REBUILD and checked.is_cut_first:",
        "elif False:",
        "a rebuild is advised that is refused until the log is cut",
        "inspect/test_remedies.py",
    ),
    Mistake(
        "store/rmqstore/exchange/files.py",
        "n_rows += len(batch)",
        "n_rows = len(batch)",
        "from the third batch of a Parquet file on, an error names another row",
        "test_exchange.py",
    ),
    Mistake(
        "store/rmqstore/exchange/files.py",
        """        path.replace(target)
    finally:""",
        """    finally:
        path.replace(target)""",
        "an export that fails leaves a file that looks complete",
        "cli/test_damage.py",
    ),
    Mistake(
        "store/rmqstore/copying/copier.py",
        """            self.disk.flush_all([self.target / file.name for file in copied])
            self.journal.add(copied)""",
        """            self.journal.add(copied)
            self.disk.flush_all([self.target / file.name for file in copied])""",
        "after a power cut a copy goes on with files that the disk does not have",
        "test_copy.py",
    ),
    Mistake(
        "store/rmqstore/live/sending.py",
        "first = replace(self, body=self.body[:at], n_messages=n_first, last_key=last_key)",
        "first = replace(self, body=self.body[:at], n_messages=n_first)",
        "the first half of a batch that was too large is sent twice if its answer is lost",
        "live/test_writer.py",
    ),
    Mistake(
        "store/rmqstore/replica/queue_builder.py",
        """            self._checkpoint.save(index=last.time)
            stop, unknown = self._dispatch(start, stop)""",
        """            stop, unknown = self._dispatch(start, stop)
            self._checkpoint.save(index=last.time)""",
        "a broker that opens a copy after a kill deletes index files",
        "crash/test_killed_follower.py",
    ),
    Mistake(
        "store/rmqstore/replica/retention.py",
        "needed = min(needed, _physical_offset(paths, topic, queue_id, queue_offset, end))",
        "needed = _physical_offset(paths, topic, queue_id, queue_offset, end)",
        "files are deleted of which a query has not read all queues",
        "following/test_retention.py",
    ),
    Mistake(
        "store/rmqstore/source/tail.py",
        """        if self._firsts_since != self.store.log.min_offset:
            self._firsts.clear()
            self._firsts_since = self.store.log.min_offset
        end =""",
        "        end =",
        "a stream reads messages that retention has deleted, and fails",
        "source/test_tail.py",
    ),
    Mistake(
        "store/rmqstore/read/pending.py",
        """latest[key] = max(latest.get(key, -1), row["commitLogOffset"])""",
        """latest.setdefault(key, row["commitLogOffset"])""",
        "a message that was delivered once more is shown as pending",
        "read/lookup/test_pending.py",
    ),
    Mistake(
        "store/rmqstore/inspect/counts.py",
        "stop = midnight + timedelta(days=1)",
        "stop = datetime.fromtimestamp(midnight.timestamp() + 86400, current_zone())",
        "the day on which clocks are put forward has an hour of the next day",
        "inspect/test_counts.py",
    ),
    Mistake(
        "connector/pyspark_rmqstore/triggers.py",
        "    limited[oldest] = max(limited[oldest], starts[oldest] + 1)\n",
        "",
        "a stream with maxBytesPerTrigger stands still at a message that is larger",
        "connector/test_triggers.py",
    ),
    Mistake(
        "store/rmqstore/format/hashing.py",
        "        done = stop\n",
        "        done = n\n",
        "the keys beyond the first 64 KiB of an append are never found by the index",
        "equivalence/test_encode.py",
    ),
    Mistake(
        "store/rmqstore/storage/index_search.py",
        "(stored > np.subtract(begin, 1000))",
        "(stored >= begin)",
        "a look-up from a time on misses messages of its second, as items have whole seconds",
        "read/lookup/test_lookup.py",
    ),
    Mistake(
        "store/rmqstore/cli/query.py",
        "if all(name in result.missing for result in results)",
        "if len(results) == 1",
        "get of several stores ends with 0 although no store has a message of the id",
        "cli/test_get.py",
    ),
    Mistake(
        "store/kafkalog/transactions.py",
        "undecided.discard(event.producer)",
        "undecided.clear()",
        "the end of one transaction ends the walk for all: records of others count as aborted",
        "kafkalog/test_transactions.py",
    ),
    Mistake(
        "store/rmqstore/storage/files/disk.py",
        """        self.flush(fresh)
        self._forget(fresh)""",
        "        self._forget(fresh)",
        "after a power cut a checkpoint or topics.json is empty",
        "storage/files/test_disk.py",
    ),
    Mistake(
        "store/rmqstore/storage/files/lifetime.py",
        "if self.is_closed or not self.is_here:",
        "if not self.is_here:",
        "a closed writer takes rows, and writes over those of the next one",
        "test_closing.py",
    ),
    Mistake(
        "store/rmqstore/storage/files/lifetime.py",
        "return self._process in (None, os.getpid())",
        "return True",
        "a child says that it wrote, and its parent writes over the rows",
        "test_closing.py",
    ),
    Mistake(
        "store/rmqstore/storage/files/lifetime.py",
        """        with self._lock:
            if self._is_taken:
                raise StoreStateError(f"{self._name}: a call of this thread has not returned yet")
            self._is_taken = True
            try:
                yield
            finally:
                self._is_taken = False""",
        "        yield",
        "threads that share a writer mix up queue offsets",
        "test_closing.py",
    ),
    Mistake(
        "store/rmqstore/storage/files/lock.py",
        "return os.getpid(), status.st_dev, status.st_ino",
        "return 0, status.st_dev, status.st_ino",
        "a child is never given a store that its parent had open when it was forked",
        "test_closing.py",
    ),
    Mistake(
        "store/rmqstore/storage/recovery/unit_checks.py",
        "if end == queue.begin or _has_its_tags_code(",
        "if end >= queue.begin or _has_its_tags_code(",
        "a kill within a unit leaves it without its tags code for good: consumers miss the message",
        "crash/test_torn_writes.py",
    ),
    Mistake(
        "store/rmqstore/write/truncation.py",
        "if new_end > start and queue.is_batch and _lacks_last_field(queue, new_end - 1):",
        "if new_end < start:",
        "a unit of a batch that a kill ended keeps an offset in a compacted log, which it has not",
        "crash/test_torn_writes.py",
    ),
    Mistake(
        "store/rmqstore/write/truncation.py",
        """            clear(disk, segment.path, low + _OFFSET_BYTES, written)
            clear(disk, segment.path, low, min(low + _OFFSET_BYTES, written))""",
        """            clear(disk, segment.path, low, min(low + _OFFSET_BYTES, written))
            clear(disk, segment.path, low + _OFFSET_BYTES, written)""",
        "after a kill between the two, a broker serves the first record of the log in this queue",
        "crash/test_half_built.py",
    ),
    Mistake(
        "store/rmqstore/write/writer.py",
        "return max(now_ms(), self._last_store_timestamp)",
        "return now_ms()",
        "when the clock is set back, store times fall, and searches by time go astray",
        "write/test_writer.py",
    ),
    Mistake(
        "store/rmqstore/write/ledger.py",
        "previous = self.version(app_id, log)",
        "previous = None",
        "a write that was done is done again after one that was begun and not committed",
        "write/test_writer.py",
    ),
    Mistake(
        "store/rmqstore/read/stored_times.py",
        "is_early = are_right & (times < timestamp)",
        "is_early = are_right",
        "where the clock was set back, a range by time begins at any message of that age",
        "read/plan/test_time_search.py",
    ),
    Mistake(
        "store/rmqstore/storage/files/mapped_file_queue.py",
        """        self._files.drop(path)
""",
        """        file = self._files.get(path)
        self._files.drop(path)
        if file is not None:
            file.close()
""",
        "a thread reads from a descriptor that another one has closed, perhaps another file",
        "storage/files/test_mapped_file_queue.py",
    ),
    Mistake(
        "store/rmqstore/storage/files/mapped_file_queue.py",
        "        if number > self._number:  # otherwise another thread has listed them since\n",
        "        if segments is not None:\n",
        "files that a refresh has found are not read: another thread had listed them before",
        "storage/files/test_mapped_file_queue.py",
    ),
)
