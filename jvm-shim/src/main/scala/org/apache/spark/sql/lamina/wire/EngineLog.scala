package org.apache.spark.sql.lamina.wire

import java.io.{BufferedReader, IOException, InputStream, InputStreamReader}
import java.nio.charset.StandardCharsets.UTF_8

import scala.collection.mutable

import org.apache.spark.internal.Logging

/** Forwards what the engine writes to standard error into Spark's log, line by line, and keeps the last lines. */
private[wire] final class EngineLog(stream: InputStream, name: String) extends Logging {
  import EngineLog._

  private val last = mutable.Queue.empty[String]
  private val thread = DaemonThreads.start(name)(forward())

  private def forward(): Unit = {
    val reader = new BufferedReader(new InputStreamReader(stream, UTF_8))
    try Iterator.continually(reader.readLine()).takeWhile(_ != null).foreach(line)
    catch { case _: IOException => () /* the process and its pipe are gone */ }
    finally reader.close()
  }

  private def line(text: String): Unit = {
    last.synchronized {
      last.enqueue(text.take(LineLength))
      if (last.size > Lines) last.dequeue()
    }
    if (Errors.exists(text.startsWith)) logError(text)
    else if (Warnings.exists(text.startsWith)) logWarning(text)
    else if (text.startsWith("DEBUG")) logDebug(text)
    else logInfo(text)
  }

  /** The last lines, for an error message; empty if nothing was written. */
  def tail: String = last.synchronized(last.toList).mkString("\n")

  /** Waits until everything that an ended process wrote has been read. */
  def awaitEnd(timeoutMs: Long): Unit = thread.join(timeoutMs)
}

private[wire] object EngineLog {
  private val Lines = 40
  private val LineLength = 2000
  private val Errors = Seq("ERROR", "CRITICAL")
  private val Warnings = Seq("WARNING")
}
