package org.apache.spark.sql.lamina.model

import java.util.Arrays
import java.util.concurrent.atomic.AtomicInteger

import scala.collection.mutable

import org.apache.hadoop.conf.Configuration
import org.json4s.{JNothing, JObject, JValue}

import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreId}
import org.apache.spark.sql.lamina._
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.{Below, BelowEntries, EntrySink, Ops}
import org.apache.spark.sql.lamina.wire.{CommitAnswer, ProcessSettings}
import org.apache.spark.unsafe.Platform

/** A fault that the model injects. */
private[lamina] object Fault {
  def apply(what: String): LaminaError = new LaminaError(LaminaError.StorageFailed, s"fault: $what")
  def is(error: Throwable): Boolean = String.valueOf(error.getMessage).contains("fault: ")
}

/** An attempt that was published: what it changed, and all rows that it makes. */
private[lamina] final case class Published(
    base: Option[String],
    families: ColumnFamilies,
    changes: Seq[ModelStorage.Entry],
    rows: Map[ModelStorage.Key, Seq[Byte]]
)

/** The storage of a store, in memory, with what is under way to it. */
private[lamina] final class ModelStorage(threads: ModelThreads) {

  private val files = mutable.HashMap.empty[String, Published]
  private val uploads = mutable.ArrayBuffer.empty[Upload]
  private var attempts = 0

  /** Attempts that Spark was told of as failed. */
  private val failures = mutable.HashSet.empty[String]

  def failed: Set[String] = synchronized(failures.toSet)

  def newAttempt(version: Long): String = synchronized {
    attempts += 1
    f"L1.$version.1.o.-.$attempts%032x"
  }

  def isDurable(attempt: String): Boolean = synchronized(files.contains(attempt))

  /** What an attempt published; nothing for the empty store. */
  def file(attempt: Option[String]): Published = synchronized {
    attempt.fold(Published(None, ColumnFamilies.Empty, Nil, Map.empty)) { attempt =>
      files.getOrElse(attempt, throw new LaminaError(LaminaError.FileMissing, s"$attempt was not published"))
    }
  }

  /** What an attempt was made of, itself first. */
  def line(wanted: String): Seq[String] = synchronized {
    Iterator.iterate(Option(wanted))(_.flatMap(files(_).base)).takeWhile(_.isDefined).flatten.toSeq
  }

  /** The attempts from `have` to `wanted`, oldest first, where `have` is what `wanted` was made of. */
  def since(have: String, wanted: String): Option[Seq[String]] = synchronized {
    val before = line(wanted)
    Option(before.indexOf(have)).filter(_ > 0).map(before.take(_).reverse)
  }

  /** States that are open below tables. */
  val below = new AtomicInteger

  /** Accepts a commit, under an id of its own. It is durable at once, or another thread gives its outcome. */
  def accept(version: Long, published: Published): CommitAnswer = {
    val isPrompt = threads.oneIn(4)
    synchronized {
      val upload = new Upload(newAttempt(version), published)
      if (isPrompt) {
        files(upload.attempt) = published
        upload.end(Right(JObject()))
      } else uploads += upload
      upload
    }
  }

  def isIdle: Boolean = synchronized(uploads.isEmpty)

  /** Ends one upload: it is published, or fails, or is published and told as a failure. */
  def endOne(): Unit = {
    val upload = synchronized(uploads.remove(threads.choose(uploads.size)))
    val fails = threads.oneIn(4)
    synchronized {
      if (!fails || threads.oneIn(4)) files(upload.attempt) = upload.published
      if (fails) failures += upload.attempt
    }
    upload.end(if (fails) Left(Fault(s"the upload of ${upload.attempt}")) else Right(JObject()))
  }

  private final class Upload(override val attempt: String, val published: Published) extends CommitAnswer {
    @volatile private var result: Either[Throwable, JValue] = _
    private val sentNanos = threads.nanoTime()
    @volatile private var endedNanos = 0L
    private var actions = Seq.empty[() => Unit]

    def end(outcome: Either[Throwable, JValue]): Unit = {
      val due = synchronized {
        endedNanos = threads.nanoTime()
        result = outcome
        actions
      }
      due.foreach(_())
    }

    override def isDone: Boolean = result != null

    override def tookNanos: Long = endedNanos - sentNanos

    override def hurry(): Unit = ()

    override def await(isGivenUp: () => Boolean): JValue = {
      threads.awaitTrue(s"waits for the upload of $attempt")(result != null || isGivenUp())
      if (result == null) throw new InterruptedException("nobody waits for the commit any more")
      result.fold(error => throw error, identity)
    }

    override def whenDone(action: () => Unit): Unit = {
      val isDone = synchronized {
        if (result == null) actions :+= action
        result != null
      }
      if (isDone) action()
    }
  }
}

private[lamina] object ModelStorage {
  type Key = (Int, Seq[Byte])

  final case class Entry(family: Int, op: Byte, key: Seq[Byte], value: Seq[Byte])
}

/** A version that is read in place; what it gives after its end would be other rows. */
private[lamina] final class ModelBelow(
    override val version: Long,
    rows: Map[ModelStorage.Key, Seq[Byte]],
    open: AtomicInteger
) extends Below {
  private val sorted = rows.toSeq.sortWith { case (((one, key), _), ((other, otherKey), _)) =>
    if (one != other) one < other else Arrays.compareUnsigned(key.toArray, otherKey.toArray) < 0
  }
  @volatile private var isClosed = false
  open.incrementAndGet()

  private def check(): Unit = if (isClosed) throw new Violation(Rules.ReadsItsVersion, s"version $version is closed")

  override def get(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Array[Byte] = {
    check()
    rows.get(family -> Seq.tabulate(keyLength)(at => Platform.getByte(keyBase, keyOffset + at))).map(_.toArray).orNull
  }

  override def read(family: Int, from: Array[Byte], above: Boolean, until: Array[Byte], into: BelowEntries): Unit = {
    check()
    val wanted = sorted.iterator.collect { case ((`family`, key), value) => key.toArray -> value.toArray }.filter {
      case (key, _) =>
        val order = if (from == null) 1 else Arrays.compareUnsigned(key, from)
        (order > 0 || (order == 0 && !above)) && (until == null || Arrays.compareUnsigned(key, until) < 0)
    }
    while (wanted.hasNext && into.hasRoom) {
      val (key, value) = wanted.next()
      into.add(key, value)
    }
    into.isLast = !wanted.hasNext
  }

  override def close(): Unit = {
    check()
    isClosed = true
    open.decrementAndGet()
    ()
  }
}

/** A store's side of the engine, which keeps commits in memory. Any call may be where another thread goes on. */
private[lamina] final class ModelEngine(
    storage: ModelStorage,
    threads: ModelThreads,
    checkLocks: () => Unit,
    id: StateStoreId,
    conf: StateStoreConf,
    hadoop: Configuration,
    process: ProcessSettings,
    settings: Map[String, String]
) extends EngineStore(id, conf, hadoop, process, settings) {
  import ModelStorage.Entry

  @volatile var isClosed = false

  /** Who asks for a version: opens do so one by one. */
  @volatile private var loader: Thread = _

  private def call(what: String): Unit = {
    checkLocks()
    threads.interruptibly(what)
  }

  override def handle(readOnly: Boolean): EngineHandle =
    new EngineHandle(null, 1L, readOnly, id.checkpointRootLocation, Map.empty)

  override def begin(
      version: Long,
      attempt: Option[String],
      loadEmpty: Boolean,
      forceSnapshot: Boolean,
      have: Boolean
  ): Begun = {
    // also in a commit, beside an open
    call("begin")
    storage.file(attempt)
    Begun(handle(readOnly = false), storage.newAttempt(version + 1), attempt, snapshot = false, None, isWanted = false)
  }

  override def resolve(version: Long, attempt: Option[String], readOnly: Boolean): Option[String] = alone("resolve") {
    storage.file(attempt)
    attempt
  }

  private def alone[A](what: String)(answer: => A): A = {
    if (loader != null) throw new Violation(Rules.OpensOneByOne, s"$what beside an open of $loader")
    loader = Thread.currentThread()
    try {
      call(what)
      val result = answer
      call(s"$what has an answer")
      result
    } finally loader = null
  }

  override def load(version: Long, attempt: Option[String], have: Option[Position])(
      onHeader: LoadHeader => Unit
  )(sink: EntrySink): Unit = alone("load") {
    val wanted = storage.file(attempt)
    val steps = have.filterNot(_ => threads.oneIn(3)).flatMap(at => storage.since(at.content, attempt.get))
    val counts = wanted.families.all.map(family => family.id -> wanted.rows.keys.count(_._1 == family.id).toLong).toMap
    val bytes = wanted.families.all.map { family =>
      family.id -> wanted.rows.collect { case ((family.id, key), value) => key.size + value.size.toLong }.sum
    }.toMap
    // a version that it was made of, or the version itself, in place, and what came after it, newest first
    val below =
      if (steps.isDefined || layers.isEmpty || threads.oneIn(3)) None
      else attempt.map(wanted => threads.oneOf(storage.line(wanted)))
    onHeader(LoadHeader(attempt, fromHave = steps.isDefined, wanted.families, counts, bytes, below.map(place)))
    val entries = steps match {
      case Some(attempts) => attempts.flatMap(step => storage.file(Some(step)).changes)
      case None if below.isDefined =>
        storage.line(attempt.get).takeWhile(!below.contains(_)).flatMap(step => storage.file(Some(step)).changes)
      case None => wanted.rows.toSeq.map { case ((family, key), value) => Entry(family, Ops.Put, key, value) }
    }
    val breaksOff = if (threads.oneIn(6)) threads.choose(entries.size + 1) else -1
    entries.zipWithIndex.foreach { case (entry, index) =>
      if (index % 3 == 0) call(s"load sends entry $index")
      if (index == breaksOff) throw Fault("the stream broke off")
      val (key, value) = (entry.key.toArray, entry.value.toArray)
      val offset = Platform.BYTE_ARRAY_OFFSET.toLong
      sink.entry(entry.family, entry.op, key, offset, key.length, value, offset, value.length)
    }
  }

  private def place(attempt: String): InPlace =
    InPlace(s"no directory of $attempt", attempt.split('.')(1).toLong, Some(attempt))

  override private[lamina] def openBelow(place: InPlace, reads: ReadCounts): Below = {
    if (threads.oneIn(8)) throw Fault("the tables cannot be opened")
    new ModelBelow(place.version, storage.file(place.attempt).rows, storage.below)
  }

  override def materialize(version: Long, attempt: Option[String]): Unit = {
    call("materialize")
    if (threads.oneIn(6)) throw Fault("no tables were made")
    attempt.filter(storage.isDurable).foreach(base => offer(place(base)))
    call("materialize has an answer")
  }

  override def beginsWithCommit(attempt: Option[String], loadEmpty: Boolean, forceSnapshot: Boolean): Boolean =
    attempt.isDefined && !loadEmpty && !forceSnapshot

  override def wantsToHear: Boolean = threads.oneIn(3)

  override def commit(
      opened: EngineHandle,
      header: () => JObject,
      sections: Seq[(String, EntrySink => Unit)]
  ): Either[Begun, CommitAnswer] = {
    call("commit")
    val sent = sections.map { case (name, send) =>
      val entries = mutable.ArrayBuffer.empty[Entry]
      send { (family, op, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength) =>
        def bytes(base: AnyRef, offset: Long, length: Int): Seq[Byte] =
          Seq.tabulate(length)(at => Platform.getByte(base, offset + at))
        entries += Entry(family, op, bytes(keyBase, keyOffset, keyLength), bytes(valueBase, valueOffset, valueLength))
        if (entries.size % 3 == 0) threads.step(s"commit has $name ${entries.size}")
      }
      name -> entries.toSeq
    }.toMap
    val sentHeader = header()
    val families = ColumnFamilies.fromJson(sentHeader)
    val base = EngineStore.string(sentHeader \ "base" \ "attempt")
    val version = EngineStore.long(sentHeader \ "version").get
    if (threads.oneIn(20)) throw Fault("the change set was not taken")
    val rows = sent("increment").foldLeft(storage.file(base).rows) { (rows, entry) =>
      if (entry.op == Ops.Delete) rows - (entry.family -> entry.key)
      else rows + ((entry.family -> entry.key) -> entry.value)
    }
    sent.get("snapshot").foreach { entries =>
      val whole = entries.map(entry => (entry.family -> entry.key) -> entry.value)
      if (whole.toMap != rows || whole.size != rows.size)
        throw new Violation(Rules.SendsWhatChanged, s"version $version: its snapshot is not its base with its changes")
    }
    if ((sentHeader \ "begin") != JNothing && threads.oneIn(4))
      Left(Begun(opened, storage.newAttempt(version), base, snapshot = true, None, isWanted = false))
    else {
      // only of what is confirmed, as a base is, tables are made
      if (layers.isDefined && threads.oneIn(3)) base.foreach { confirmed =>
        val before = storage.line(confirmed)
        offer(place(before(threads.choose(math.min(2, before.size)))))
      }
      Right(storage.accept(version, Published(base, families, sent("increment"), rows)))
    }
  }

  override def maintain(): Unit = ()
  override def bufferBytes: Long = 0L
  override def closeLater(): Unit = isClosed = true
}
