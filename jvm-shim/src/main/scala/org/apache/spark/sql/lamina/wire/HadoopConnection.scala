package org.apache.spark.sql.lamina.wire

import java.io.{
  ByteArrayInputStream,
  ByteArrayOutputStream,
  DataInputStream,
  EOFException,
  FileNotFoundException,
  InputStream,
  OutputStream
}
import java.nio.{ByteBuffer, ByteOrder}
import java.nio.channels.{Channels, SocketChannel}
import java.nio.charset.StandardCharsets.{US_ASCII, UTF_8}
import java.security.{MessageDigest, PrivilegedExceptionAction}

import scala.collection.mutable
import scala.util.Using
import scala.util.control.NonFatal

import org.apache.commons.io.IOUtils
import org.json4s.{JArray, JObject, JValue}
import org.json4s.JsonAST.{JBool, JInt, JString}

import org.apache.hadoop.fs.{FileAlreadyExistsException, FileSystem, Path, StreamCapabilities}
import org.apache.hadoop.fs.viewfs.ViewFileSystem
import org.apache.hadoop.security.{AccessControlException, UserGroupInformation}
import org.apache.hadoop.util.functional.FutureIO

import org.apache.spark.internal.Logging
import org.apache.spark.sql.lamina.errors.LaminaError

/**
 * One connection of the engine for Hadoop files: its requests follow one another, all on one directory.
 *
 * A publication is written under a temporary name and renamed without replacing anything. How strong that is, is the
 * file system's: HDFS does it in one step. Where a file system writes on condition that nothing is there, as S3A does,
 * that is how a file is published if absent.
 */
private[wire] final class HadoopConnection(
    channel: SocketChannel,
    token: String,
    systems: HadoopSystems,
    user: UserGroupInformation
) extends Logging {
  import HadoopConnection._

  private val in = new DataInputStream(Channels.newInputStream(channel))
  private val out = Channels.newOutputStream(channel)
  private var used = Option.empty[HadoopSystems.Used]
  private var root: Path = _

  /** Answers requests until the engine closes the connection. */
  def serve(): Unit = if (greeted()) {
    try
      while (true) {
        val header =
          try readHeader()
          catch { case _: EOFException => return }
        user.doAs(new PrivilegedExceptionAction[Unit] { override def run(): Unit = answer(header) })
      }
    finally giveUp()
  }

  /** Null before `open`. */
  private def system: FileSystem = used.map(_.system).orNull

  private def giveUp(): Unit = {
    used.foreach(_.release())
    used = None
  }

  private def greeted(): Boolean = {
    val expected = Protocol.greeting()
    val offered = new Array[Byte](expected.remaining + token.length)
    in.readFully(offered)
    val known = ByteBuffer.allocate(offered.length).put(Protocol.greeting()).put(token.getBytes(US_ASCII)).array
    val accepted = MessageDigest.isEqual(offered, known)
    if (accepted) write(expected)
    accepted
  }

  private def answer(header: JValue): Unit = {
    val body = if (isPublication(header)) new Body(in) else NoBody
    try {
      text(header, "op") match {
        case "open" => open(header)
        case "publish" => publish(header, body)
        case "publish_if_absent" => publishIfAbsent(header, body)
        case "read" => read(header)
        case "list" => list(header)
        case "delete" => delete(header)
        case "size" => size(header)
        case "stamp" => stamp(header)
        case other =>
          throw new LaminaError(LaminaError.EngineProtocol, s"no request for Hadoop files is named '$other'")
      }
    } catch {
      case error: Broken => throw error
      case NonFatal(error) =>
        body.skip()
        send(
          "ok" -> JBool(false),
          "error" -> JObject("kind" -> JString(kind(error)), "message" -> JString(said(error)))
        )
    }
  }

  private def open(header: JValue): Unit = {
    root = new Path(text(header, "url"))
    val keys = header \ "conf" match {
      case JObject(fields) => fields.collect { case (name, JString(value)) => name -> value }.toMap
      case _ => Map.empty[String, String]
    }
    giveUp()
    used = Some(systems.use(root, keys))
    root = system.makeQualified(root)
    send("ok" -> JBool(true))
  }

  private def publish(header: JValue, body: Body): Unit = {
    val target = path(header)
    whole(header, target, body) { temporary =>
      rename(temporary, target) || isSame(temporary, target) && dropped(temporary) || {
        // the name is its writer's alone: what is in the way is something older of it
        system.delete(target, false)
        rename(temporary, target) ||
        (throw new FileAlreadyExistsException(s"$target was written by somebody else at the same time"))
      }
    }
    send("ok" -> JBool(true), "size" -> JInt(body.size))
  }

  /**
   * Whether a file is there with the same contents, which another try of the same publication wrote. Others count on it, so it is never
   * away, not even for a moment.
   */
  private def isSame(temporary: Path, target: Path): Boolean =
    try
      system.getFileStatus(temporary).getLen == system.getFileStatus(target).getLen &&
        Using.Manager { use =>
          IOUtils.contentEquals(use(system.open(temporary)), use(system.open(target)))
        }.get
    catch { case _: FileNotFoundException => false }

  private def publishIfAbsent(header: JValue, body: Body): Unit = {
    val target = path(header)
    val written =
      if (isConditional(target)) wroteIfAbsent(target, body)
      else whole(header, target, body)(temporary => rename(temporary, target))
    send("ok" -> JBool(true), "written" -> JBool(written))
  }

  /** Whether a file can be made that appears whole when it is closed, and only where none is, whoever wrote that one. */
  private def isConditional(target: Path): Boolean =
    system.getUri.getScheme == CreatesWhole ||
      // a view says what its mounts can do, and passes no option on to them
      !system.isInstanceOf[ViewFileSystem] && system.hasPathCapability(target, ConditionalCreate)

  private def wroteIfAbsent(target: Path, body: Body): Boolean = {
    // what is published if absent is small
    val bytes = new ByteArrayOutputStream
    body.copyTo(bytes)
    // otherwise the engine gave it up
    body.complete && {
      try {
        create(target, bytes.toByteArray)
        true
      } catch {
        // something is there, which may be what an answer that was lost told of
        case NonFatal(error) => holds(target, bytes.toByteArray).getOrElse(throw error)
      }
    }
  }

  private def create(target: Path, bytes: Array[Byte]): Unit = {
    val file =
      if (system.getUri.getScheme == CreatesWhole) system.create(target, false)
      else system.createFile(target).create().recursive().must(ConditionalCreate, true).build()
    try file.write(bytes)
    catch {
      case NonFatal(error) =>
        // to close it would publish a part
        if (file.hasCapability(StreamCapabilities.ABORTABLE_STREAM)) file.abort()
        throw error
    }
    file.close()
  }

  /** Whether these bytes are those of a file; None where it is not there. */
  private def holds(target: Path, bytes: Array[Byte]): Option[Boolean] =
    try Some(Using.resource(system.open(target))(IOUtils.contentEquals(_, new ByteArrayInputStream(bytes))))
    catch { case _: FileNotFoundException => None }

  private def dropped(temporary: Path): Boolean = {
    try system.delete(temporary, false)
    catch { case NonFatal(_) => () } // it is found by its name, and removed later
    true
  }

  /** Writes the body under the temporary name and lets `name` give it its own; whether it did. */
  private def whole(header: JValue, target: Path, body: Body)(name: Path => Boolean): Boolean = {
    val temporary = new Path(target.getParent, text(header, "temporary"))
    var named = false
    try {
      val file = system.create(temporary, true)
      try body.copyTo(file)
      finally file.close()
      // otherwise the engine gave it up
      named = body.complete && name(temporary)
      named
    } finally if (!named) {
        dropped(temporary)
        ()
      }
  }

  /** Renames unless the target is there; whether it did. */
  private def rename(temporary: Path, target: Path): Boolean =
    if (LookAndRename(system.getUri.getScheme)) renameUnlessTaken(temporary, target)
    else Renaming.alone(target)(!system.exists(target) && renameUnlessTaken(temporary, target))

  private def renameUnlessTaken(temporary: Path, target: Path): Boolean =
    try system.rename(temporary, target) || {
        if (system.exists(target)) false else throw new java.io.IOException(s"$temporary was not renamed to $target")
      }
    catch { case _: FileAlreadyExistsException => false }

  private def read(header: JValue): Unit = {
    val file = path(header)
    val status = system.getFileStatus(file)
    if (status.isDirectory) throw new FileNotFoundException(s"$file is a directory")
    val size = status.getLen
    val offset = number(header, "offset")
    val start = if (offset < 0) math.max(0L, size + offset) else offset
    val count = math.max(0L, math.min(number(header, "length"), size - start))
    // many file systems would look once more
    val stream = FutureIO.awaitFuture(system.openFile(file).withFileStatus(status).build())
    try {
      val buffer = new Array[Byte](math.min(count, BufferBytes.toLong).toInt)
      def next(at: Long): Int = {
        val part = math.min(count - at, buffer.length.toLong).toInt
        if (part > 0) stream.readFully(start + at, buffer, 0, part)
        part
      }
      // many file systems ask for a file when it is read, not when it is opened: why that failed can be answered still
      var part = next(0)
      send("ok" -> JBool(true), "length" -> JInt(count), "size" -> JInt(size))
      var at = 0L
      while (at < count) {
        try out.write(buffer, 0, part)
        catch { case NonFatal(error) => throw new Broken(error) /* the engine has given it up */ }
        at += part
        part =
          try next(at)
          catch {
            case NonFatal(error) =>
              logWarning(s"$file could not be read to its end", error)
              throw new Broken(error)
          }
      }
    } finally stream.close()
  }

  private def list(header: JValue): Unit = {
    val entries =
      try system.listStatus(path(header)).toList.filter(_.isFile)
      catch { case _: FileNotFoundException => Nil }
    send(
      "ok" -> JBool(true),
      "entries" -> JArray(entries.map { entry =>
        JArray(List(JString(entry.getPath.getName), JInt(entry.getLen), JInt(entry.getModificationTime)))
      })
    )
  }

  private def delete(header: JValue): Unit = {
    val paths = header \ "paths" match {
      case JArray(values) => values.collect { case JString(path) => under(path) }
      case _ => Nil
    }
    paths.foreach { path =>
      // false says that it was not there, and nothing else
      if (!system.delete(path, false) && system.exists(path)) throw new java.io.IOException(s"$path was not deleted")
    }
    send("ok" -> JBool(true))
  }

  private def size(header: JValue): Unit = {
    val status = system.getFileStatus(path(header))
    if (status.isDirectory) throw new FileNotFoundException(s"${status.getPath} is a directory")
    send("ok" -> JBool(true), "size" -> JInt(status.getLen))
  }

  /**
   * Makes a file as old as one that is written now, and says whether it is: some file systems do nothing, or refuse. None
   * becomes older, whatever clock this machine has.
   */
  private def stamp(header: JValue): Unit = {
    val file = path(header)
    val before = system.getFileStatus(file).getModificationTime
    val now = System.currentTimeMillis
    // that of a machine whose clock is ahead: it is as young as one that is written now
    val isStamped = before >= now || {
      try system.setTimes(file, now, -1)
      catch { case NonFatal(_) => () } // it keeps its time, or is not there, which the next look tells
      val after = system.getFileStatus(file).getModificationTime
      after >= now - TimePrecisionMs && (after > before || before >= now - TimePrecisionMs)
    }
    send("ok" -> JBool(true), "stamped" -> JBool(isStamped))
  }

  private def path(header: JValue): Path = under(text(header, "path"))

  private def under(relative: String): Path = {
    if (root == null) throw new LaminaError(LaminaError.EngineProtocol, "a request for Hadoop files before open")
    if (relative.isEmpty) root else new Path(root, relative)
  }

  private def readHeader(): JValue = {
    val length = littleEndian(in)
    if (length < 0 || length > Protocol.MaxHeaderBytes)
      throw new EOFException(s"a header of $length bytes for Hadoop files")
    val json = new Array[Byte](length)
    in.readFully(json)
    Protocol.parse(new String(json, UTF_8))
  }

  private def send(fields: (String, JValue)*): Unit = write(Protocol.frame(JObject(fields.toList)))

  private def write(bytes: ByteBuffer): Unit = while (bytes.hasRemaining) { channel.write(bytes); () }
}

private[wire] object HadoopConnection {
  private val BufferBytes = 1 << 20

  /** Some file systems keep whole seconds, or two. */
  private val TimePrecisionMs = 2000L

  /** HDFS looks for the target and renames in one step, whatever the protocol. Others may replace the target. */
  private val LookAndRename = Set("hdfs", "webhdfs", "swebhdfs")

  /** What Hadoop calls a file that is made, when it is closed, only where none is; S3A has it since 3.4.2. */
  private val ConditionalCreate = "fs.option.create.conditional.overwrite"

  /** Google's connectors make each file that may not replace another one so, and have no such name for it. */
  private val CreatesWhole = "gs"

  /** One rename of this JVM to the same path at a time, where the file system may replace the target. */
  private[wire] object Renaming {
    private final class Turn { var takers = 0 }
    private val turns = new mutable.HashMap[Path, Turn]

    def alone[T](target: Path)(rename: => T): T = {
      val turn = turns.synchronized {
        val turn = turns.getOrElseUpdate(target, new Turn)
        turn.takers += 1
        turn
      }
      try turn.synchronized(rename)
      finally turns.synchronized {
          turn.takers -= 1
          if (turn.takers == 0) turns.remove(target)
        }
    }
  }

  /** The connection cannot go on: the engine would take what follows for something else. */
  private final class Broken(cause: Throwable) extends java.io.IOException(cause)

  private def isPublication(header: JValue): Boolean = header \ "op" match {
    case JString("publish") | JString("publish_if_absent") => true
    case _ => false
  }

  private def text(header: JValue, name: String): String = header \ name match {
    case JString(value) => value
    case other => throw new LaminaError(LaminaError.EngineProtocol, s"a request for Hadoop files with $name = $other")
  }

  private def number(header: JValue, name: String): Long = header \ name match {
    case JInt(value) => value.toLong
    case other => throw new LaminaError(LaminaError.EngineProtocol, s"a request for Hadoop files with $name = $other")
  }

  private def kind(error: Throwable): String = error match {
    case ours: LaminaError => ours.kind
    case _: FileNotFoundException => LaminaError.FileMissing
    case _: AccessControlException | _: java.nio.file.AccessDeniedException | _: SecurityException =>
      LaminaError.StorageDenied
    case _ => LaminaError.StorageFailed
  }

  private def said(error: Throwable): String = error match {
    case ours: LaminaError => ours.text
    case other => s"${other.getClass.getName}: ${other.getMessage}"
  }

  private def littleEndian(in: DataInputStream): Int = {
    val bytes = new Array[Byte](4)
    in.readFully(bytes)
    ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).getInt
  }

  /** What follows the header of a publication: pieces with their length, up to one of length 0, or of -1: given up. */
  private class Body(in: DataInputStream) {
    private var ended = false
    private var left = 0
    var complete = false
    var size = 0L

    def copyTo(file: OutputStream): Unit = pieces((buffer, count) => file.write(buffer, 0, count))

    /** Reads what is left of it. */
    def skip(): Unit = pieces((_, _) => ())

    private def pieces(take: (Array[Byte], Int) => Unit): Unit = {
      var buffer = Array.emptyByteArray
      while (!ended) {
        if (left == 0) {
          left = littleEndian(in)
          if (left <= 0) {
            ended = true
            complete = left == 0
          }
        }
        if (!ended) {
          val count = math.min(left, BufferBytes)
          if (buffer.length < count) buffer = new Array[Byte](count)
          in.readFully(buffer, 0, count)
          left -= count
          size += count
          take(buffer, count)
        }
      }
    }
  }

  private object NoBody extends Body(new DataInputStream(InputStream.nullInputStream)) {
    override def skip(): Unit = ()
  }
}
