-- lock/acquire_all: acquire several locks, all or none, for an owner id of one acquisition alone.
-- uses     lib/acl
-- KEYS[1..]  members.lock_hash, members.channel, members.memory_key: its release will be
--            published on the channel; the memory key is that of its release, and exists if a late
--            copy must not acquire
-- ARGV[1]  owner (text): id
-- ARGV[2]  ttl_ms (ms)
-- ARGV[3]  publish (command)
-- returns  acquired {busy number}: 0 when all were acquired; {holder's pttl, holder, index} of the
--          first lock that somebody else holds, the holder is '' for a read-write lock; "over" when
--          this acquisition was released already
local members, owner, ttl_ms, publish = KEYS, ARGV[1], ARGV[2], ARGV[3]

local function first_denied()
  for i = 2, #members, 3 do
    local denied = publish_denied(publish, members[i])
    if denied then
      return denied
    end
  end
end

-- The usual case needs one look, and no function of the libraries below: all locks are free, and
-- this acquisition was not released.
if redis.call('exists', unpack(members)) == 0 then
  local denied = first_denied()
  if denied then
    return denied
  end
  for i = 1, #members, 3 do
    redis.call('hset', members[i], owner, 1)
    redis.call('pexpire', members[i], ttl_ms)
  end
  return 0
end

-- uses     lib/extend, lib/holder, lib/primary

-- Look at all locks before the first write.
local refused, is_copy = nil, true
for i = 1, #members, 3 do
  local lock_hash, memory_key = members[i], members[i + 2]
  if redis.call('exists', memory_key) == 1 then
    return 'over'
  end
  if redis.call('hexists', lock_hash, owner) == 0 then
    is_copy = false
    local holder, foreign_data = holder_of(lock_hash)
    if foreign_data then
      return foreign_data
    elseif holder and not refused then
      refused = {redis.call('pttl', lock_hash), holder, (i - 1) / 3}
    end
  end
end
-- Not before an acquisition: after a write that a full Redis allows, the others pass, too.
if refused or is_copy then
  require_primary(members[3]) -- no memory key exists
end
if refused then
  return refused
end
local denied = first_denied()
if denied then
  return denied
end
for i = 1, #members, 3 do
  -- A copy of this request finds its own locks, which may have been extended or nested in since.
  if redis.call('hexists', members[i], owner) == 0 then
    redis.call('hset', members[i], owner, 1)
  end
  extend(members[i], ttl_ms)
end
return 0
