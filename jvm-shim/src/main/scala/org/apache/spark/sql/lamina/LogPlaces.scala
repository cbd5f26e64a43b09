package org.apache.spark.sql.lamina

import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.ConcurrentHashMap

import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.json4s.{JInt, JString}
import org.json4s.jackson.JsonMethods.parse

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager

/**
 * Where the barrier looks for log objects: in the place below `changelog.path` that objects are written to, or in the checkpoint,
 * and, for objects that do not come, wherever else the checkpoint says that its objects are (docs/spec/files.md). Those are of
 * stores that rest since before the setting changed, and are there already: each place is asked for an object once.
 *
 * @param state the directory `state` of the checkpoint
 * @param inner reads the checkpoint
 */
private[lamina] final class LogPlaces(state: Path, conf: Configuration, inner: CheckpointFileManager) extends Logging {
  import LogPlaces._

  private val path: Option[String] =
    Option(
      conf.get(PathKey)
    ).map(_.trim).filterNot(text => text.isEmpty || text.equalsIgnoreCase("none")).map(withoutSlash)
  private val roots = path.toSeq ++ StoreSettings.directories(Option(conf.get(RootsKey)))

  private val absent = ConcurrentHashMap.newKeySet[(String, String)]
  private val unread = ConcurrentHashMap.newKeySet[String]
  @volatile private var known: Option[Seq[String]] = None

  /** Another batch waits: what was not elsewhere is not remembered. */
  def begin(): Unit = absent.clear()

  /** Whether an object is where objects are written to. */
  def exists(log: String): Boolean = if (path.isEmpty) inner.exists(own(log)) else current.exists(isIn(_, log))

  /** How an object is named to people. */
  def location(log: String): String = path.fold(own(log).toString) { path =>
    // without a look: it is asked for when the storage does not answer
    known.flatMap(_.find(isCurrent)).fold(s"$log.log below $path")(place => s"$place/$log.log")
  }

  private def own(log: String): Path = LaminaCheckpointFileManager.objectOf(state, log)

  private def isIn(place: String, log: String): Boolean = {
    val file = new Path(s"$place/$log.log")
    file.getFileSystem(conf).exists(file)
  }

  /** Whether an object is in another place. The storage there may have been given up long ago, and hang. */
  def isElsewhere(log: String): Boolean = {
    def found(where: String, look: => Boolean): Boolean =
      !absent.contains((where, log)) && (look || { absent.add((where, log)); false })
    val others = places.filterNot(isCurrent).filter(mayBeRead)
    (path.isDefined && found("", inner.exists(own(log)))) || others.exists(place => found(place, isIn(place, log)))
  }

  /** The places that objects are written to: one, unless the checkpoint was moved. */
  private def current: Seq[String] = places.filter(isCurrent)

  private def isCurrent(place: String): Boolean = path.contains(parent(parent(place)))

  private def mayBeRead(place: String): Boolean = {
    val allowed = roots.exists(root => comparable(place).startsWith(comparable(withoutSlash(root)) + "/"))
    if (!allowed && unread.add(place))
      logWarning(s"$place may have log objects of $state, and $RootsKey does not name it")
    allowed
  }

  /** Those that the checkpoint names; listed again only until the one is there that is set. */
  private def places: Seq[String] = listed.getOrElse(synchronized(listed.getOrElse {
    val found = named
    known = Some(found)
    found
  }))

  private def listed: Option[Seq[String]] = known.filter(places => path.isEmpty || places.exists(isCurrent))

  private def named: Seq[String] = {
    val directory = LaminaCheckpointFileManager.objectOf(state, "_").getParent
    val files =
      if (inner.exists(directory)) inner.list(directory, file => File.matches(file.getName)).map(_.getPath).toSeq.sorted
      else Nil
    files.flatMap(urlOf)
  }

  /** What a file says where a place is; None where this release cannot tell: what is there is not found. */
  private def urlOf(file: Path): Option[String] = {
    val in = inner.open(file)
    val text =
      try new String(in.readAllBytes(), UTF_8)
      finally in.close()
    val url =
      try {
        val values = parse(text)
        (values \ "format", values \ "url") match {
          case (JInt(format), JString(url)) if format == 1 && file.getName == s"${name(url)}.at" => Some(url)
          case _ => None
        }
      } catch { case NonFatal(_) => None }
    if (url.isEmpty) logWarning(s"$file names no place of log objects that this release knows")
    url
  }
}

private[lamina] object LogPlaces {
  private val PathKey = StoreSettings.Prefix + "changelog.path"
  private val RootsKey = StoreSettings.Prefix + "storage.roots"

  private val File = "[0-9a-f]{32}\\.at".r

  private def withoutSlash(url: String): String = url.reverse.dropWhile(_ == '/').reverse

  private def parent(url: String): String = url.substring(0, math.max(0, url.lastIndexOf('/')))

  private def name(url: String): String = url.substring(url.lastIndexOf('/') + 1)

  /** The same for all ways in which a URL may be written, as far as they have the same authority. */
  private def comparable(url: String): String = {
    val uri = new Path(url).toUri
    val scheme = Option(uri.getScheme).map(_.toLowerCase).getOrElse("file")
    s"${if (Set("s3a", "s3n")(scheme)) "s3" else scheme}://${Option(uri.getAuthority).getOrElse("")}${uri.getPath}"
  }
}
