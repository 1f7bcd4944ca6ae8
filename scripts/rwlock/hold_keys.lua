-- rwlock/hold_keys: the keys of a reader's holds, see rwlock/readers.
--
-- They are derived from the hash's name. Their common prefix is not a key, so it must not be among
-- the script's KEYS: while a cluster moves the slot, Redis refuses a script with a missing key
-- (TRYAGAIN).
-- defines  hold_prefix(lock_hash), hold_key(prefix, id, n), hold_keys_denied(prefix, id)

-- hold_prefix returns the common prefix of all hold keys: Redisson's suffixName.
local function hold_prefix(lock_hash)
  if string.find(lock_hash, '{', 1, true) then
    return lock_hash .. ':'
  end
  return '{' .. lock_hash .. '}:'
end

-- hold_key returns the key of a reader's n-th hold.
local function hold_key(prefix, id, n)
  return prefix .. id .. ':rwlock_timeout:' .. n
end

-- hold_keys_denied returns nil if the user may use the hold keys, else the error to return. Redis
-- has not checked them, because they are not in KEYS. Servers before 7.0 cannot tell; there it
-- returns nil.
local function hold_keys_denied(prefix, id)
  local key = hold_key(prefix, id, 1)
  if redis.acl_check_cmd and not redis.acl_check_cmd('set', key, '1') then
    return redis.error_reply(
      'NOPERM this user has no permissions to access the keys of readers, ' .. key)
  end
end
