// The operators of `benchmarks.operators` that run a function of the user's, which PySpark would run in Python.
package lamina.benchmarks.operators

import org.apache.spark.sql.{DataFrame, Encoder, Encoders}
import org.apache.spark.sql.streaming._

final case class Event(key: String, ms: Long, v: Long)

/** What is kept of a key: how many events, the sum of their values, the time of the last one. */
final case class Seen(n: Long, total: Long, last: Long) {
  def and(event: Event): Seen = Seen(n + 1, total + event.v, math.max(last, event.ms))
}

object Seen {
  val Nothing: Seen = Seen(0, 0, 0)
}

/** The end of a key; the last three come from a list and a map. */
final case class Summary(key: String, n: Long, total: Long, last: Long, listed: Long, sum: Long, kinds: Long)

object Typed {
  private val events: Encoder[Event] = Encoders.product[Event]
  private val summaries: Encoder[Summary] = Encoders.product[Summary]

  /** `flatMapGroupsWithState`: one value for each key, and its summary once no event came for `lifetimeMs`. */
  def mapGroups(rows: DataFrame, lifetimeMs: Long): DataFrame =
    rows.as[Event](events)
      .groupByKey((event: Event) => event.key)(Encoders.STRING)
      .flatMapGroupsWithState[Seen, Summary](OutputMode.Update(), GroupStateTimeout.EventTimeTimeout())(
        (key: String, came: Iterator[Event], state: GroupState[Seen]) => mapped(lifetimeMs, key, came, state)
      )(Encoders.product[Seen], summaries)
      .toDF()

  private def mapped(lifetimeMs: Long, key: String, came: Iterator[Event], state: GroupState[Seen]): Iterator[Summary] =
    if (state.hasTimedOut) {
      val seen = state.get
      state.remove()
      Iterator(Summary(key, seen.n, seen.total, seen.last, 0, 0, 0))
    } else {
      val seen = came.foldLeft(state.getOption.getOrElse(Seen.Nothing))(_.and(_))
      state.update(seen)
      state.setTimeoutTimestamp(seen.last + lifetimeMs)
      Iterator.empty
    }

  /** `transformWithState`: a value, a list, a map and a timer for each key, and its summary when the timer expires. */
  def transform(rows: DataFrame, lifetimeMs: Long): DataFrame =
    rows.as[Event](events)
      .groupByKey((event: Event) => event.key)(Encoders.STRING)
      .transformWithState[Summary](new Lifetimes(lifetimeMs), TimeMode.EventTime(), OutputMode.Append())(summaries)
      .toDF()
}

final class Lifetimes(lifetimeMs: Long) extends StatefulProcessor[String, Event, Summary] {
  @transient private var seen: ValueState[Seen] = _
  @transient private var values: ListState[Long] = _
  @transient private var kinds: MapState[Long, Long] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
    seen = getHandle.getValueState[Seen]("seen", Encoders.product[Seen], TTLConfig.NONE)
    values = getHandle.getListState[Long]("values", Encoders.scalaLong, TTLConfig.NONE)
    kinds = getHandle.getMapState[Long, Long]("kinds", Encoders.scalaLong, Encoders.scalaLong, TTLConfig.NONE)
  }

  override def handleInputRows(key: String, came: Iterator[Event], timerValues: TimerValues): Iterator[Summary] = {
    val before = Option(seen.get())
    var now = before.getOrElse(Seen.Nothing)
    came.foreach { event =>
      now = now.and(event)
      values.appendValue(event.v)
      val kind = event.v % 4
      val known = if (kinds.containsKey(kind)) kinds.getValue(kind) else 0L
      kinds.updateValue(kind, known + 1)
    }
    seen.update(now)
    if (!before.exists(_.last == now.last)) {
      before.foreach(old => getHandle.deleteTimer(old.last + lifetimeMs))
      getHandle.registerTimer(now.last + lifetimeMs)
    }
    Iterator.empty
  }

  override def handleExpiredTimer(
      key: String,
      timerValues: TimerValues,
      expiredTimerInfo: ExpiredTimerInfo): Iterator[Summary] = {
    val last = seen.get()
    val (listed, sum) = values.get().foldLeft((0L, 0L)) { case ((n, total), value) => (n + 1, total + value) }
    val summary = Summary(key, last.n, last.total, last.last, listed, sum, kinds.iterator().size.toLong)
    seen.clear()
    values.clear()
    kinds.clear()
    Iterator(summary)
  }
}
