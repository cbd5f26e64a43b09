package org.apache.spark.sql.lamina

import java.nio.file.{Files, Path}
import java.sql.Timestamp
import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._
import scala.util.{Random, Using}

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.SparkConf
import org.apache.spark.sql.{DataFrame, Dataset, Row, SparkSession}
import org.apache.spark.sql.execution.streaming.runtime.MemoryStream
import org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider
import org.apache.spark.sql.functions._
import org.apache.spark.sql.lamina.wire.Engine
import org.apache.spark.sql.streaming._

/**
 * The stateful operators of the Dataset API, in format v2: what each batch gives on this provider, some of them after a
 * restart, is what it gives on RocksDB's. Spark's own suites run on one minor only, this one on each.
 */
class OperatorsSuite extends AnyFunSuite with BeforeAndAfterAll {
  private val root = Files.createTempDirectory("lamina-operators-")

  /** Settings of the backend that the stores have. */
  protected def backend: Map[String, String] = Map.empty

  /** How the names of the files end that commits are in. */
  protected def commits: String = ".lam"

  private lazy val spark: SparkSession = SparkSession.builder()
    .master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.warehouse.dir", root.resolve("warehouse").toString)
    .config("spark.sql.extensions", classOf[LaminaExtensions].getName)
    .config("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
    .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    .config("spark.sql.streaming.join.stateFormatV4.enabled", "true")
    .config(s"${StoreSettings.Prefix}engine.python", RepositoryEngine.python(root).toString)
    .config(s"${StoreSettings.Prefix}heap.maxBytes", "256m")
    .config(new SparkConf(false).setAll(backend))
    .getOrCreate()
  import spark.implicits._

  override protected def afterAll(): Unit = {
    spark.stop()
    Engine.shutdown()
    Using.resource(Files.walk(root))(_.iterator.asScala.toList).reverse.foreach(Files.delete)
    super.afterAll()
  }

  /** Batches whose events go on in time, with stragglers, over a few keys. */
  private val batches: Seq[Seq[Event]] = {
    val random = new Random(7)
    for (batch <- 0 until 4) yield Seq.fill(40) {
      val second = 20 * batch + random.nextInt(24) - 4
      Event(s"k${random.nextInt(9)}", new Timestamp(1700000000000L + second * 1000L), random.nextInt(20))
    }
  }

  /** What a query gives, batch by batch, on a provider; it is started again after half of the input. */
  private def results(
      provider: String,
      mode: OutputMode,
      settings: Map[String, String],
      operator: Dataset[Event] => DataFrame
  ): Map[Long, Seq[String]] = {
    val checkpoint = Files.createTempDirectory(root, "checkpoint-")
    val rowsOf = new ConcurrentHashMap[Long, Seq[String]]
    val conf = settings + ("spark.sql.streaming.stateStore.providerClass" -> provider)
    conf.foreach { case (key, value) => spark.conf.set(key, value) }
    try {
      val input = MemoryStream[Event](spark)
      val output = operator(input.toDS().withWatermark("at", "5 seconds"))
      for (part <- batches.grouped(batches.size / 2)) {
        val query = output.writeStream
          .outputMode(mode)
          .option("checkpointLocation", checkpoint.toString)
          .foreachBatch { (rows: Dataset[Row], batch: Long) =>
            rowsOf.put(batch, rows.collect().map(_.toString).toSeq.sorted)
            ()
          }
          .start()
        try part.foreach { events =>
            input.addData(events)
            query.processAllAvailable()
          }
        finally query.stop()
      }
    } finally conf.keys.foreach(spark.conf.unset)
    assert(stateFiles(checkpoint).exists(_.endsWith(commits)) == (provider == Lamina))
    rowsOf.asScala.toMap
  }

  private def stateFiles(checkpoint: Path): Seq[String] =
    Using.resource(Files.walk(checkpoint.resolve("state")))(_.iterator.asScala.map(_.toString).toList)

  private val Lamina = classOf[LaminaStateStoreProvider].getName
  private val RocksDB = classOf[RocksDBStateStoreProvider].getName

  private def compared(
      name: String,
      mode: OutputMode = OutputMode.Update(),
      settings: Map[String, String] = Map.empty,
      variants: Seq[Map[String, String]] = Seq(Map.empty)
  )(operator: Dataset[Event] => DataFrame): Unit =
    test(name) {
      val expected = results(RocksDB, mode, settings, operator)
      assert(expected.values.count(_.nonEmpty) > 2)
      for (variant <- variants) {
        val found = results(Lamina, mode, settings ++ variant, operator)
        assert(found == expected, variant)
      }
    }

  compared("an aggregation")(_.groupBy("key").agg(count("*"), sum("value"), max("at")))

  compared("windows, in append mode", OutputMode.Append()) {
    _.groupBy(window($"at", "10 seconds", "5 seconds"), $"key").agg(sum("value"))
  }

  compared("session windows", OutputMode.Append())(_.groupBy(session_window($"at", "4 seconds"), $"key").count())

  compared("dropDuplicates", OutputMode.Append())(_.dropDuplicates("key", "value").toDF())

  compared("dropDuplicatesWithinWatermark", OutputMode.Append())(_.dropDuplicatesWithinWatermark("key").toDF())

  compared("flatMapGroupsWithState with timeouts") {
    _.groupByKey(_.key)
      .flatMapGroupsWithState(OutputMode.Update(), GroupStateTimeout.EventTimeTimeout())(OperatorsSuite.runningSum)
      .toDF()
  }

  // Spark 4.3 sets the formats 3 and 4 back to 2, and the results are the same.
  private val joinFormats =
    Seq("2", "3", "4").map(format => Map("spark.sql.streaming.join.stateFormatVersion" -> format))

  for (kind <- Seq("inner", "left_outer", "full_outer", "left_semi"))
    compared(s"a $kind join in each state format", OutputMode.Append(), variants = joinFormats) { events =>
      val left = events.where($"value" % 2 === 0)
      val right = events.where($"value" % 2 === 1).toDF("rightKey", "rightAt", "rightValue")
      val near = $"rightAt".between($"at" - expr("interval 3 seconds"), $"at" + expr("interval 3 seconds"))
      left.join(right, $"key" === $"rightKey" && near, kind)
    }

  private val timers = Seq("rocksdb", "heap").map(where => Map(s"${StoreSettings.Prefix}rocksdb.timers" -> where))

  compared("transformWithState with values, lists, maps and timers", variants = timers) {
    _.groupByKey(_.key)
      .transformWithState(new EventsOfKey, TimeMode.EventTime(), OutputMode.Update())
      .toDF()
  }

  compared("transformWithState with timers and keys of maps that are set while others are walked", variants = timers) {
    _.groupByKey(_.key)
      .transformWithState(new Ticking, TimeMode.EventTime(), OutputMode.Update())
      .toDF()
  }

  compared(
    "transformWithState with TTL",
    // else Spark makes one batch without data after the other
    settings = Map("spark.sql.streaming.noDataMicroBatches.enabled" -> "false")
  ) {
    _.groupByKey(_.key)
      .transformWithState(new ShortAndLongLived, TimeMode.ProcessingTime(), OutputMode.Update())
      .toDF()
  }
}

case class Event(key: String, at: Timestamp, value: Int)

object OperatorsSuite {

  /** Adds up a key's values until none has come for ten seconds of event time. */
  val runningSum: (String, Iterator[Event], GroupState[Long]) => Iterator[(String, Long, Boolean)] =
    (key, events, state) =>
      if (state.hasTimedOut) {
        val sum = state.get
        state.remove()
        Iterator((key, sum, true))
      } else {
        val all = events.toSeq
        val sum = state.getOption.getOrElse(0L) + all.map(_.value.toLong).sum
        state.update(sum)
        state.setTimeoutTimestamp(math.max(all.map(_.at.getTime).max, state.getCurrentWatermarkMs()) + 10000)
        Iterator((key, sum, false))
      }
}

/** A key's number of events, its latest values and how often it had each; forgotten after ten seconds of event time. */
class EventsOfKey extends StatefulProcessor[String, Event, (String, Long, String, String)] {
  import implicits._

  @transient private var events: ValueState[Long] = _
  @transient private var latest: ListState[Int] = _
  @transient private var often: MapState[Int, Long] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
    events = getHandle.getValueState[Long]("events", TTLConfig.NONE)
    latest = getHandle.getListState[Int]("latest", TTLConfig.NONE)
    often = getHandle.getMapState[Int, Long]("often", TTLConfig.NONE)
  }

  override def handleInputRows(key: String, rows: Iterator[Event], timers: TimerValues)
      : Iterator[(String, Long, String, String)] = {
    val added = rows.toSeq.sortBy(event => (event.at.getTime, event.value))
    events.update((if (events.exists()) events.get() else 0L) + added.size)
    added.foreach { event =>
      latest.appendValue(event.value)
      often.updateValue(event.value, (if (often.containsKey(event.value)) often.getValue(event.value) else 0L) + 1)
    }
    val values = latest.get().toSeq
    if (values.size > 10) latest.put(values.takeRight(5).toArray)
    often.iterator().filter(_._2 > 2).map(_._1).toSeq.foreach(often.removeKey)
    getHandle.listTimers().toSeq.foreach(getHandle.deleteTimer)
    getHandle.registerTimer(math.max(added.last.at.getTime, timers.getCurrentWatermarkInMs()) + 10000)
    Iterator(result(key))
  }

  override def handleExpiredTimer(key: String, timers: TimerValues, expired: ExpiredTimerInfo)
      : Iterator[(String, Long, String, String)] = {
    val last = result(s"$key at ${expired.getExpiryTimeInMs()}")
    events.clear()
    latest.clear()
    often.clear()
    Iterator(last)
  }

  private def result(key: String): (String, Long, String, String) =
    (key, events.get(), latest.get().mkString(" "), often.iterator().toSeq.sorted.mkString(" "))
}

/** Sets a key's timer a little on when it is due, and a further key of a map for each one that it has. */
class Ticking extends StatefulProcessor[String, Event, (String, Long, String)] {
  import implicits._

  @transient private var numbers: MapState[Int, Int] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit =
    numbers = getHandle.getMapState[Int, Int]("numbers", TTLConfig.NONE)

  override def handleInputRows(key: String, rows: Iterator[Event], timers: TimerValues)
      : Iterator[(String, Long, String)] = {
    rows.foreach(event => numbers.updateValue(event.value, 0))
    if (getHandle.listTimers().isEmpty) getHandle.registerTimer(timers.getCurrentWatermarkInMs() + 100)
    Iterator.empty
  }

  override def handleExpiredTimer(key: String, timers: TimerValues, expired: ExpiredTimerInfo)
      : Iterator[(String, Long, String)] = {
    getHandle.registerTimer(expired.getExpiryTimeInMs() + 100)
    val seen = numbers.keys().map { number =>
      numbers.updateValue(number + 1000, 1)
      number
    }.toSeq.sorted
    Iterator((key, expired.getExpiryTimeInMs(), seen.mkString(" ")))
  }
}

/** How often a key came, with states that expire before the next batch and states that stay for an hour. */
class ShortAndLongLived extends StatefulProcessor[String, Event, (String, Long, Long, Int, Int)] {
  import implicits._

  private def forMs(duration: Long): TTLConfig = TTLConfig(java.time.Duration.ofMillis(duration))

  @transient private var short: ValueState[Long] = _
  @transient private var long: ValueState[Long] = _
  @transient private var list: ListState[Int] = _
  @transient private var map: MapState[Int, Int] = _

  override def init(outputMode: OutputMode, timeMode: TimeMode): Unit = {
    short = getHandle.getValueState[Long]("short", forMs(1))
    long = getHandle.getValueState[Long]("long", forMs(3600000))
    list = getHandle.getListState[Int]("list", forMs(1))
    map = getHandle.getMapState[Int, Int]("map", forMs(3600000))
  }

  override def handleInputRows(key: String, rows: Iterator[Event], timers: TimerValues)
      : Iterator[(String, Long, Long, Int, Int)] = {
    val values = rows.map(_.value).toSeq
    Seq(short, long).foreach(state => state.update((if (state.exists()) state.get() else 0L) + values.size))
    list.appendList(values.toArray)
    values.foreach(value => map.updateValue(value, value))
    Iterator((key, short.get(), long.get(), list.get().size, map.keys().size))
  }
}

/** The same with commits in log objects, for which the batch waits and its tasks do not. */
class OperatorsWithChangelogSuite extends OperatorsSuite {
  override protected def backend: Map[String, String] = Map(
    s"${StoreSettings.Prefix}changelog.enabled" -> "true",
    s"${StoreSettings.Prefix}durability.level" -> "executor",
    "spark.sql.streaming.checkpointFileManagerClass" -> classOf[LaminaCheckpointFileManager].getName
  )

  override protected def commits: String = ".log"
}

/** The same with tables of RocksDB below, which are newer with each batch. */
class OperatorsOnTablesSuite extends OperatorsSuite {
  override protected def backend: Map[String, String] = Map(
    s"${StoreSettings.Prefix}backend" -> "rocksdb",
    s"${StoreSettings.Prefix}rocksdb.materializeEvery" -> "1"
  )
}
