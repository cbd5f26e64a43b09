package org.apache.spark.sql.lamina

import scala.util.{Failure, Success, Try}

import org.apache.spark.SparkThrowable
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.{IntegerType, StringType, StructType}

/** The same calls on this provider and on both of Spark's: what they answer, one by one. */
class BuiltInAnswersSuite extends ProviderFixture {
  private val Lamina = "lamina"
  private val Hdfs = "HDFS"
  private val RocksDB = "RocksDB"
  private val Refused = "STATE_STORE_VALUE_ROW_FORMAT_VALIDATION_FAILURE"
  private val makers = Seq[(String, () => StateStoreProvider)](
    Lamina -> (() => new StreamingProvider),
    Hdfs -> (() => new HDFSBackedStateStoreProvider),
    RocksDB -> (() => new RocksDBStateStoreProvider)
  )

  private val wideSchema = new StructType().add("value", IntegerType).add("more", StringType).add("last", IntegerType)

  /** What each provider answers; all are on checkpoints of their own. */
  private def answers[A](body: (() => StateStoreProvider, StateStoreId) => A): Map[String, A] =
    makers.map { case (name, make) => name -> body(make, newId()) }.toMap

  private def condition(of: Try[Any]): String = of match {
    case Success(_) => "taken"
    case Failure(error) => Iterator.iterate(error)(_.getCause).takeWhile(_ != null)
        .collectFirst { case known: SparkThrowable if known.getCondition != null => known.getCondition }
        .getOrElse(error.toString)
  }

  test(
    "the number of rows in the metrics is that of the open transaction, of a commit, and of the base after an abort"
  ) {
    val keys = answers { (make, id) =>
      val provider = init(make(), id, format = 1)
      // RocksDB's provider refuses to tell it while a transaction is open
      def rows(store: StateStore): Option[Long] = Try(store.metrics.numKeys).toOption
      val first = provider.getStore(0, None)
      val empty = rows(first)
      put(first, 1L -> 1, 2L -> 2, 3L -> 3)
      val open = rows(first)
      first.remove(key(1L), family)
      val removed = rows(first)
      first.commit()
      val committed = rows(first)
      val second = provider.getStore(1, None)
      put(second, 3L -> 30, 4L -> 4, 5L -> 5)
      val openAgain = rows(second)
      second.abort()
      val third = provider.getStore(1, None)
      val afterAbort = rows(third)
      third.abort()
      provider.close()
      Seq(empty, open, removed, committed, openAgain, afterAbort)
    }
    assert(keys(Hdfs) == Seq(0L, 3L, 2L, 2L, 4L, 2L).map(Option(_)))
    assert(keys(Lamina) == keys(Hdfs))
    assert(keys(RocksDB) == Seq(None, None, None, Some(2L), None, None))
  }

  private val reads = Seq[(String, ReadStateStore => Any)](
    "get" -> (_.get(key(1L), family)),
    "iterator" -> (store => store.iterator(family).foreach(_ => ()))
  )

  for ((what, read) <- reads)
    test(s"rows of the open transaction that do not fit the schema are taken by $what") {
      val found = answers { (make, id) =>
        val provider = init(make(), id, format = 1, valueSchema = wideSchema)
        val store = provider.getStore(0, None)
        put(store, 1L -> 1)
        val answer = condition(Try(read(store)))
        store.abort()
        provider.close()
        answer
      }
      // as Spark's default provider does; RocksDB's checks what its cache holds, too
      assert(found == Map(Lamina -> "taken", Hdfs -> "taken", RocksDB -> Refused))
    }

  for ((what, read) <- reads)
    test(s"committed rows that do not fit the schema are refused where $what reads them") {
      val found = answers { (make, id) =>
        val writer = init(make(), id, format = 1)
        val store = writer.getStore(0, None)
        put(store, 1L -> 1, 2L -> 2)
        store.commit()
        writer.close()
        val reader = init(make(), id, format = 1, valueSchema = wideSchema)
        val opened = Try(reader.getReadStore(1, None))
        val answer = condition(opened.map(read))
        opened.foreach(_.abort())
        reader.close()
        answer
      }
      // the default provider checks rows as it loads them
      assert(found == Map(
        Lamina -> Refused,
        Hdfs -> "CANNOT_LOAD_STATE_STORE.VALUE_ROW_FORMAT_VALIDATION_FAILURE",
        RocksDB -> Refused
      ))
    }

  test("a committed row is checked although rows of the open transaction were read before it") {
    val id = newId()
    val writer = init(new StreamingProvider, id, format = 1)
    val store = writer.getStore(0, None)
    put(store, 1L -> 1)
    store.commit()
    writer.close()
    val other = init(new StreamingProvider, id, format = 1, valueSchema = wideSchema)
    val open = other.getStore(1, None)
    put(open, 2L -> 2)
    assert(condition(Try(open.get(key(2L), family))) == "taken")
    assert(condition(Try(open.get(key(1L), family))) == Refused)
    open.abort()
    other.close()
  }
}
