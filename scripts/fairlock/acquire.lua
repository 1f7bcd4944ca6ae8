-- fairlock/acquire: acquire the lock if it is free and no waiter is before, or join the queue.
-- uses     lib/acl, lib/clock, lib/holder, fairlock/queue
-- KEYS[1..8]  lock_hash, channel, memory_key, shared_counts, queue, deadlines, waiters, clients:
--             see fair_lock in fairlock/queue. The memory is that of this acquisition's release: it
--             exists if a late copy must not acquire
-- ARGV[1]  owner (text): id
-- ARGV[2]  ttl_ms (ms)
-- ARGV[3]  publish (command)
-- ARGV[4]  is_shared (flag): others may share the id; else it belongs to this acquisition alone
-- ARGV[5]  refuse_second (flag): refuse a second count
-- ARGV[6]  joins (number): 1 to join the queue when refused; 2 to be granted the lock there, too
-- ARGV[7]  timeout_ms (ms): of this waiter
-- ARGV[8]  client (text): an id that is new after each restart
-- ARGV[9]  client_id (text): with which its owner ids begin
-- ARGV[10] is_nested (flag): in a hold with the same id, which must still have the lock
-- ARGV[11] random (number): of 16 digits, so that nobody else can guess what a grant says
-- returns  acquired {since text, is_foreign flag}:
--          0 when acquired;
--          "over" when this acquisition has ended;
--          "again" when a second count is refused;
--          "lost" when the outer hold is gone;
--          when refused {holder's pttl, holder}, and, in the queue, the time at which it joined,
--            and 1 if Redisson holds the lock, or may before it. In the queue the pttl is -2 if the
--            client sent a heartbeat a moment ago: its refresh reads it
local lock = fair_lock(KEYS)
local owner, ttl_ms, publish = ARGV[1], ARGV[2], ARGV[3]
local is_shared, refuse_second, is_nested = ARGV[4] ~= '0', ARGV[5] == '1', ARGV[10] == '1'
local joins, wants_grant, timeout_ms = ARGV[6] ~= '0', ARGV[6] == '2', ARGV[7]
local client, client_id, random = ARGV[8], ARGV[9], ARGV[11] or ''

if redis.call('get', lock.memory) then
  return 'over'
end
local holder, foreign_data = holder_of(lock.hash)
if foreign_data then
  return foreign_data
end
local held = holder == owner

local contended = holder
  or redis.call('exists', lock.queue, lock.deadlines, lock.waiters, lock.clients) > 0
local now, known, holder_client = nil, {}, nil
if contended then
  now = now_ms()
  holder_client = holder and string.match(holder, '^(.*):') or ''
  known = redis.call(
    'hmget', lock.clients, client, 'shared', 'reach', 'holder', 'id ' .. holder_client,
    'id ' .. client_id, 'timeout')
end
local last_heartbeat, was_mixed, reach = known[1], known[2], tonumber(known[3])
local noted_holder, holder_is_redlatch = known[4], known[5]
local noted_client, longest_timeout = known[6], tonumber(known[7]) or 0
-- A recent heartbeat need not be renewed, and its client was allowed to publish a moment ago: that
-- is enough to stay in the queue, but not to acquire.
local age = last_heartbeat and now - last_heartbeat
local is_recent = age and age < heartbeat_interval and age < timeout_ms / 4
local may_acquire = held or not holder
local denied = (may_acquire or not is_recent)
  and publish_denied(publish, lock.channel .. ':' .. owner)
if denied and not held then
  return denied
end

-- The usual cases need no function of the libraries below.
if not contended and not is_shared and not is_nested then
  redis.call('hset', lock.hash, owner, '1')
  redis.call('pexpire', lock.hash, ttl_ms)
  return 0
end

-- uses     lib/primary

-- Not before an acquisition: after a write that a full Redis allows, the others pass, too. To join
-- the queue is a write.
if is_nested and not held then
  require_primary(lock.memory)
  return 'lost'
end
if may_acquire then
-- uses     lib/extend, lib/shared_counts

  if held then
    local has_count -- the lock has a count of this acquisition already
    if is_shared then
      has_count = has_shared_count(lock.shared_counts, owner, lock.memory)
    else
      local shared = shared_count(lock.shared_counts, owner, math.huge)
      has_count = shared == 0 or tonumber(redis.call('hget', lock.hash, owner)) > shared
    end
    if has_count then -- a copy of this request, or the lock was granted in the queue
      require_primary(lock.memory)
      renew(lock.hash, ttl_ms)
      if is_shared then
        extend(lock.shared_counts, ttl_ms)
      end
      return 0
    end
    if refuse_second then
      require_primary(lock.memory)
      return 'again'
    end
  end

  if denied then
    return denied
  end

  -- acquire adds a count to the lock. It changes the shared counts first: if that key has another
  -- type, nothing has changed yet.
  local function acquire()
    if is_shared then
      add_shared_count(lock.shared_counts, owner, lock.memory, not held, ttl_ms)
    end
    redis.call('hincrby', lock.hash, owner, '1')
    if held then
      extend(lock.hash, ttl_ms)
    else
      redis.call('pexpire', lock.hash, ttl_ms)
    end
    return 0
  end

  if not contended then
    return acquire()
  end
  local rules = queue_rules()
  local head = rules.live_head(lock, now)
  if head and (held or head == owner) then
    rules.remove_waiter(lock, owner)
    acquire()
    rules.update_scores(lock, now, true)
    rules.note_holder(lock, owner, ttl_ms)
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
  require_primary(lock.memory)
  return {redis.call('pttl', lock.hash), holder}
end

-- From here on the waiter joins the queue, if it is not there yet. Read each key before the first
-- write: one of another type must fail while nothing has changed.
local entries = redis.call('hlen', lock.waiters)
local own_reach = math.max(timeout_ms, shortest_timeout)
local keeps_reach = reach and reach >= own_reach and not was_mixed
if not keeps_reach then
  local highest = redis.call('zrange', lock.deadlines, -1, -1, 'withscores')[2]
  reach = math.max(own_reach, tonumber(highest or 0) - now)
end
local since, length
if redis.call('zadd', lock.deadlines, 'nx', string.format('%d', now + reach), owner) == 1 then
  length = redis.pcall('rpush', lock.queue, owner)
  if type(length) == 'table' then
    redis.call('zrem', lock.deadlines, owner)
    return length
  end
else
  length = redis.call('llen', lock.queue)
  local _, place_client, _, place_since = parse_waiter(redis.call('hget', lock.waiters, owner))
  since = place_since
  if is_shared and place_client and place_client ~= client then
    queue_rules().note_twin(lock, owner, client, timeout_ms)
  end
end
if not since then
  since = ''
  local entry = client .. ' ' .. timeout_ms
  if wants_grant then
    since = string.format('%d', now) .. random
    entry = entry .. ' ' .. ttl_ms .. ' ' .. since
  end
  redis.call('hset', lock.waiters, owner, entry)
  entries = entries + 1
end
if not is_recent or noted_client ~= client or longest_timeout < tonumber(timeout_ms) then
  -- Record that this client is alive.
  redis.call('hset', lock.clients, client, now, 'id ' .. client_id, client,
    'timeout', math.max(longest_timeout, timeout_ms))
  -- Redisson does not know of these two keys. If all redlatch clients crash, they expire.
  local keep_ms = math.max(60000, 2 * timeout_ms)
  for _, key in ipairs({lock.waiters, lock.clients}) do
    if redis.call('pttl', key) < keep_ms then
      redis.call('pexpire', key, 2 * keep_ms)
    end
  end
end
if not is_recent then
  queue_rules().forget_clients(lock, now, holder)
end
local mixed = was_mixed or entries ~= length
if mixed then
  queue_rules().update_scores(lock, now, false)
elseif not keeps_reach then
  redis.call('hset', lock.clients, 'reach', reach)
end
local no_redisson_holder = not holder or holder == noted_holder or holder_is_redlatch
  or holder_client == client_id
return {
  is_recent and -2 or redis.call('pttl', lock.hash), holder or '',
  -- Only a private waiter can be granted the lock in the queue, even if a shared one has the same
  -- id.
  wants_grant and since or '', (mixed or not no_redisson_holder) and 1 or 0,
}
