-- fairlock/acquire: acquire the lock if it is free and no waiter is before, or join the queue.
-- uses     lib/acl, lib/clock, lib/extend, fairlock/queue
-- KEYS[1..]  the keys of a fair lock: see fair_lock in fairlock/queue. The memory is that of the
--            release for a private acquisition; for a shared one 1 acquired, 2 released, 3 must not
--            acquire
-- ARGV[1]  owner id
-- ARGV[2]  ttl, ms
-- ARGV[3]  publish command
-- ARGV[4]  memory ttl, ms, when others may share the id; 0 when it belongs to this acquisition
--          alone
-- ARGV[5]  1 to refuse a second count
-- ARGV[6]  1 to join the queue when refused; 2 to be granted the lock there, too
-- ARGV[7]  timeout of this waiter, ms
-- ARGV[8]  its client: an id that is new after each restart
-- ARGV[9]  its client id, with which its owner ids begin
-- ARGV[10] 1 when nested in a hold with the same id, which must still have the lock
-- returns  0 when acquired; "over" when this acquisition has ended; "again" when a second count is
--          refused; "lost" when the outer hold is gone; when refused {holder's pttl, holder}, and,
--          in the queue, the time at which it joined, and 1 if Redisson holds the lock, or may
--          before it
local lock = fair_lock(KEYS)
local owner, ttl_ms, publish, memory_ttl_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local is_shared, refuse_second, is_nested = ARGV[4] ~= '0', ARGV[5] == '1', ARGV[10] == '1'
local joins, wants_grant, timeout_ms = ARGV[6] ~= '0', ARGV[6] == '2', ARGV[7]
local client, client_id = ARGV[8], ARGV[9]

local memory = redis.call('get', lock.memory)
if memory and not (is_shared and memory == '1') then
  return 'over'
end
local holder = redis.call('hkeys', lock.hash)[1]
local held = holder == owner
if is_nested and not held then
  return 'lost'
end

-- has_count reports whether the lock has a count of this acquisition already.
local function has_count()
  if is_shared then
    return memory
  end
  local shared = tonumber(redis.call('hget', lock.shared_counts, owner) or 0)
  return shared == 0 or tonumber(redis.call('hget', lock.hash, owner)) > shared
end

if held and has_count() then -- a copy of this request, or the lock was granted in the queue
  extend(lock.hash, ttl_ms)
  return 0
end
if held and refuse_second then
  return 'again'
end

-- acquire adds a count to the lock. It changes the shared counts first: if that key has another
-- type, nothing has changed yet.
local function acquire()
  if is_shared then
    if held then
      redis.call('hincrby', lock.shared_counts, owner, 1)
    else
      redis.call('hset', lock.shared_counts, owner, 1)
    end
    redis.call('pexpire', lock.shared_counts, math.max(86400000, ttl_ms))
  end
  redis.call('hincrby', lock.hash, owner, 1)
  if held then
    extend(lock.hash, ttl_ms)
  else
    redis.call('pexpire', lock.hash, ttl_ms)
  end
  if is_shared then
    redis.call('set', lock.memory, '1', 'px', memory_ttl_ms)
  end
  return 0
end

local contended = holder
  or redis.call('exists', lock.queue, lock.deadlines, lock.waiters, lock.clients) > 0
local holder_client = string.match(holder or '', '^(.*):') or ''
local known = contended
  and redis.call('hmget', lock.clients, client, 'shared', 'holder', 'id ' .. holder_client) or {}
local last_heartbeat, was_mixed = known[1], known[2]
local noted_holder, holder_is_redlatch = known[3], known[4]
local now = contended and now_ms()
-- A recent heartbeat need not be renewed, and its client has been found to be allowed to publish.
local is_recent = last_heartbeat
  and now - last_heartbeat < math.min(heartbeat_interval, timeout_ms / 4)
local denied = not is_recent and publish_denied(publish, lock.channel .. ':' .. owner)
if denied then
  return denied
end

-- send_heartbeat records that this client is alive.
local function send_heartbeat()
  redis.call('hset', lock.clients, client, now, 'id ' .. client_id, '1')
  -- Redisson does not know of these two keys. If all redlatch clients crash, they expire.
  local keep_ms = math.max(60000, 2 * timeout_ms)
  for _, key in ipairs({lock.waiters, lock.clients}) do
    if redis.call('pttl', key) < keep_ms then
      redis.call('pexpire', key, 2 * keep_ms)
    end
  end
end

-- enqueue puts the waiter into the queue, if it is not there yet. It returns the time at which the
-- waiter joined, and 1 if Redisson holds the lock or may before it; or, as a third result, an
-- error.
local function enqueue()
  -- Read each key before the first write: one of another type must fail while nothing has changed.
  local entries = redis.call('hlen', lock.waiters)
  local highest = redis.call('zrange', lock.deadlines, -1, -1, 'withscores')[2]
  local score = math.max(score_after(now, tonumber(timeout_ms)), tonumber(highest or 0))
  local length, since
  if redis.call('zadd', lock.deadlines, 'nx', score, owner) == 1 then
    length = redis.pcall('rpush', lock.queue, owner)
    if type(length) == 'table' then
      redis.call('zrem', lock.deadlines, owner)
      return nil, nil, length
    end
  else
    length = redis.call('llen', lock.queue)
    since = select(4, read_waiter(lock, owner))
  end
  if not since then
    since = wants_grant and string.format('%d', now) or ''
    local entry = client .. ' ' .. timeout_ms
    if since ~= '' then
      entry = entry .. ' ' .. ttl_ms .. ' ' .. since
    end
    redis.call('hset', lock.waiters, owner, entry)
    entries = entries + 1
  end
  if not is_recent then
    send_heartbeat()
  end
  local mixed = was_mixed or entries ~= length
  if mixed then
    update_scores(lock, now, false)
  end
  local no_redisson_holder = not holder or holder == noted_holder or holder_is_redlatch
    or holder_client == client_id
  -- Only a private waiter can be granted the lock in the queue, even if a shared one has the same
  -- id.
  return wants_grant and since or '', (mixed or not no_redisson_holder) and 1 or 0
end

if not contended then
  return acquire()
end
if not holder or held then
  local head = live_head(lock, now)
  if head and (held or head == owner) then
    remove_waiter(lock, owner)
    acquire()
    update_scores(lock, now, true)
    note_holder(lock, owner, ttl_ms)
    return 0
  end
  if not head then
    if not held then
      delete_empty_queue(lock)
    end
    return acquire()
  end
end
if not joins then
  return {redis.call('pttl', lock.hash), holder}
end
local since, behind_redisson, fault = enqueue()
if fault then
  return fault
end
return {redis.call('pttl', lock.hash), holder or '', since, behind_redisson}
