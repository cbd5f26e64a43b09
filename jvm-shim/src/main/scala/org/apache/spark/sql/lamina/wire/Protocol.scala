package org.apache.spark.sql.lamina.wire

import java.nio.{ByteBuffer, ByteOrder}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.Properties

import scala.util.Using

import org.json4s.{JObject, JValue}
import org.json4s.JsonAST.{JBool, JString}
import org.json4s.jackson.JsonMethods

import org.apache.spark.sql.lamina.errors.LaminaError

/** Constants and small forms of the wire protocol (docs/spec/wire.md), and what a JSON answer means. */
private[wire] object Protocol {
  val Version = 1

  /** Longest JSON header that is believed. */
  val MaxHeaderBytes: Int = 64 << 20

  private val BuildProperties = "lamina-build.properties"
  private val Magic = "LMNW".getBytes(UTF_8)

  /** What both sides send first on a data connection; the shim adds its token. */
  def greeting(): ByteBuffer = {
    val bytes = ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN)
    bytes.put(Magic).putShort(Version.toShort).putShort(0).flip()
  }

  /** A JSON header with its length in front. */
  def frame(header: JValue): ByteBuffer = {
    val json = text(header).getBytes(UTF_8)
    val bytes = ByteBuffer.allocate(4 + json.length).order(ByteOrder.LITTLE_ENDIAN)
    bytes.putInt(json.length).put(json).flip()
  }

  def text(json: JValue): String = JsonMethods.compact(JsonMethods.render(json))

  def parse(json: String): JValue =
    try JsonMethods.parse(json)
    catch {
      case error: Exception =>
        throw new LaminaError(LaminaError.EngineProtocol, s"the engine answered no JSON: ${json.take(200)}", error)
    }

  /** The answer itself if it says ok; otherwise throws the error that it carries. */
  def answer(json: JValue): JValue = json \ "ok" match {
    case JBool(true) => json
    case JBool(false) => throw error(json \ "error")
    case _ =>
      throw new LaminaError(LaminaError.EngineProtocol, s"the engine answered without ok: ${text(json).take(200)}")
  }

  /** The error in the form in which it crosses the wire. */
  def error(json: JValue): LaminaError = (json \ "kind", json \ "message") match {
    case (JString(kind), JString(message)) => LaminaError.fromKind(kind, message)
    case _ => new LaminaError(LaminaError.EngineProtocol, s"the engine answered an error without kind: ${text(json)}")
  }

  def merged(header: JObject, more: (String, JValue)*): JObject = {
    val names = more.iterator.map(_._1).toSet
    JObject(more.toList ++ header.obj.filterNot { case (name, _) => names(name) })
  }

  /** Version of this shim, from the properties that the build puts beside its classes. */
  lazy val shimVersion: String = {
    val properties = new Properties
    Option(getClass.getClassLoader.getResourceAsStream(BuildProperties))
      .foreach(stream => Using.resource(stream)(properties.load))
    Option(properties.getProperty("version")).getOrElse(
      throw new LaminaError(
        LaminaError.VersionEngine,
        s"the version of this shim is unknown, since $BuildProperties is not beside its classes (was the jar " +
          "repackaged?), so that no engine can be matched to it; use the jar as lamina releases it"
      )
    )
  }
}
