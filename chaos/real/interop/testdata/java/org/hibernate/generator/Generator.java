package org.hibernate.generator;

public interface Generator extends java.io.Serializable {}
