package org.hibernate;

public class HibernateException extends RuntimeException {
  public HibernateException(String message, Throwable cause) {
    super(message, cause);
  }
}
