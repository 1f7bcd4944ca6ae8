package redlatch.interop;

import java.util.List;

/**
 * Names one Redisson object. Equal targets share one Java object, as the threads of a program would; {@code handle} tells apart
 * several Java objects of one name. {@code members} are the locks of a {@code multi} or {@code red} lock, possibly of several
 * clients.
 */
record Target(String client, String kind, String name, String handle, List<Target> members) {}
